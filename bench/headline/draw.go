package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/chart"
)

// The settings of the drawn regions.
var drawnLinks = []float64{0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3}

const drawnDevices, drawnMicros = 4, 8

// regions are images of where avgpipe is faster than methods that take as many samples in a step.
var regions = []struct {
	file, about string
	peers       []string
	byMicros    bool // a line for each number of micro-batches; else of devices
	lines       []int
}{
	{"region-devices", "throughput over gpipe and 1f1b, M = 8 in a step", []string{"gpipe", "1f1b"}, false, []int{2, 4, 8, 16}},
	{"region-micro-batches", "throughput over gpipe and 1f1b, K = 4", []string{"gpipe", "1f1b"}, true, []int{4, 8, 16, 32}},
	{"region-zero-bubble", "throughput over zb-h1, zb-h2 and interleaved, M = 8 in a step", []string{"zb-h1", "zb-h2", "interleaved"}, false, []int{2, 4, 8, 16}},
}

// draw draws the regions, and the times to the target of each model.
func draw(o options, m measured) error {
	if err := os.MkdirAll(o.figures, 0o755); err != nil {
		return err
	}
	var err error
	for _, r := range regions {
		c := chart.Chart{X: linkAxis, Y: r.about}
		for _, x := range r.lines {
			devices, micros, name := x, drawnMicros, fmt.Sprintf("K = %d", x)
			if r.byMicros {
				devices, micros, name = drawnDevices, x, fmt.Sprintf("M = %d", x)
			}
			line, failed := advantage(name, devices, micros, r.peers)
			if failed != nil {
				return failed
			}
			c.Lines = append(c.Lines, line)
		}
		err = errors.Join(err, write(o.figures, r.file, &c))
	}
	for _, w := range o.models {
		for _, target := range w.targets {
			c, drawn, failed := m.overLinks(w, target)
			if failed != nil {
				return errors.Join(err, failed)
			}
			if drawn {
				err = errors.Join(err, write(o.figures, fmt.Sprintf("target-%s-%g", w.name, target), &c))
			}
		}
	}
	return err
}

const linkAxis = "time of a message on a link, in forwards"

// advantage is the throughput of pipelines that share a batch of so many micro-batches, over that of the best of some methods with the
// same batch: at equal samples, the gain in time.
func advantage(name string, devices, micros int, peers []string) (chart.Line, error) {
	line := chart.Line{Name: name}
	for _, link := range drawnLinks {
		s := setting{devices, link}
		own, err := s.share(micros)
		if err != nil {
			return line, err
		}
		best := 0.0
		for _, peer := range peers {
			m, err := methodOf(peer)
			if err != nil {
				return line, err
			}
			period, err := s.period(m.schedule, m.chunks, 1, micros)
			if err != nil {
				return line, err
			}
			best = max(best, float64(micros)/period)
		}
		line.Points = append(line.Points, chart.Point{X: link, Y: own / best, Low: own / best, High: own / best})
	}
	return line, nil
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

// overLinks draws the time to a target of a model of every method, over the speed of the links; false where none reached it.
func (m measured) overLinks(w workload, target float64) (c chart.Chart, drawn bool, err error) {
	devices := m.devices[0]
	c = chart.Chart{X: fmt.Sprintf("%s (%s, K = %d)", linkAxis, w.name, devices), Y: fmt.Sprintf("time to %g nats, in forwards", target)}
	for _, name := range []string{"gpipe", "1f1b", pipeDream, pipeDream2BW, "zb-h2", averaged, averagedPipeDream} {
		of, err := methodOf(name)
		if err != nil {
			return c, false, err
		}
		line := chart.Line{Name: name}
		for _, link := range drawnLinks {
			o, found, err := m.best(w, target, setting{devices, link}, of)
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
