package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/chart"
)

// The settings of the drawn region.
var (
	drawnLinks   = []float64{0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3}
	drawnDevices = []int{2, 4, 8, 16}
	drawnMicros  = []int{4, 8, 16, 32}
)

// draw draws the region in which avgpipe is faster, at equal samples, and the times to the target of each model.
func draw(o options, m measured) error {
	if err := os.MkdirAll(o.figures, 0o755); err != nil {
		return err
	}
	byDevices, byMicros := chart.Chart{X: linkAxis, Y: "throughput over the best published pipeline (M = 8)"},
		chart.Chart{X: linkAxis, Y: "throughput over the best published pipeline (K = 4)"}
	for _, k := range drawnDevices {
		line, err := advantage(fmt.Sprintf("K = %d", k), k, 8)
		if err != nil {
			return err
		}
		byDevices.Lines = append(byDevices.Lines, line)
	}
	for _, micros := range drawnMicros {
		line, err := advantage(fmt.Sprintf("M = %d", micros), 4, micros)
		if err != nil {
			return err
		}
		byMicros.Lines = append(byMicros.Lines, line)
	}
	err := errors.Join(write(o.figures, "region-devices", &byDevices), write(o.figures, "region-micro-batches", &byMicros))
	for _, w := range o.models {
		c, drawn, failed := m.overLinks(w)
		if failed != nil {
			return errors.Join(err, failed)
		}
		if drawn {
			err = errors.Join(err, write(o.figures, "target-"+w.name, &c))
		}
	}
	return err
}

const linkAxis = "time of a message on a link, in forwards"

// advantage is the throughput of what tuning chooses, of pipelines that share a batch of so many micro-batches, over that of the best
// published pipeline: at equal samples, the gain in time.
func advantage(name string, devices, micros int) (chart.Line, error) {
	line := chart.Line{Name: name}
	for _, link := range drawnLinks {
		s := setting{devices, link}
		own, err := s.share(micros)
		if err != nil {
			return line, err
		}
		best, err := s.fastestPublished(micros)
		if err != nil {
			return line, err
		}
		line.Points = append(line.Points, chart.Point{X: link, Y: own / best, Low: own / best, High: own / best})
	}
	return line, nil
}

// fastestPublished is the highest throughput of the published pipelines: those that drain for each step, and those that never do.
func (s setting) fastestPublished(micros int) (most float64, err error) {
	for _, name := range []string{"gpipe", "1f1b"} {
		period, err := s.period(name, 1, 1, micros)
		if err != nil {
			return 0, err
		}
		most = max(most, float64(micros)/period)
	}
	period, err := s.undrained(pipeDream, micros)
	return max(most, float64(micros)/period), err
}

// share is the highest throughput of pipelines that share a batch of so many micro-batches: N of them with an Nth each.
func (s setting) share(micros int) (most float64, err error) {
	for n := 1; n <= micros && n <= mostPipelines; n++ {
		if micros%n != 0 {
			continue
		}
		for _, name := range choosable {
			period, err := s.period(name, 1, n, micros/n)
			if err != nil {
				return 0, err
			}
			most = max(most, float64(micros)/period)
		}
	}
	return most, nil
}

// overLinks draws the time to a model's target of every method, over the speed of the links; false where nothing was trained.
func (m measured) overLinks(w workload) (c chart.Chart, drawn bool, err error) {
	devices := m.devices[0]
	c = chart.Chart{X: fmt.Sprintf("%s (%s, K = %d)", linkAxis, w.name, devices), Y: "time to the target, in forwards"}
	for _, name := range []string{"gpipe", "1f1b", pipeDream, pipeDream2BW, "zb-h2", averaged} {
		of, err := methodOf(name)
		if err != nil {
			return c, false, err
		}
		line := chart.Line{Name: name}
		for _, link := range drawnLinks {
			o, found, err := m.best(w, setting{devices, link}, of)
			if err != nil {
				return c, false, err
			}
			if found {
				line.Points = append(line.Points, chart.Point{X: link, Y: o.time, Low: o.time, High: o.time})
			}
		}
		if len(line.Points) > 0 {
			c.Lines, drawn = append(c.Lines, line), true
		}
	}
	return c, drawn, nil
}

// write writes an image as SVG and as PNG.
func write(dir, name string, c *chart.Chart) error {
	var svg, png bytes.Buffer
	if err := errors.Join(c.SVG(&svg), c.PNG(&png)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, name+".svg"), svg.Bytes(), 0o644), os.WriteFile(filepath.Join(dir, name+".png"), png.Bytes(), 0o644))
}
