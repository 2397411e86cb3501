package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/chart"
)

// draw draws speed over the rate of links, a chart for each number of replicas and way to compute, as SVG and PNG.
func draw(dir string, all []measurement) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	charts := charts(all)
	for name, c := range charts {
		for ending, encode := range map[string]func(io.Writer) error{"svg": c.SVG, "png": c.PNG} {
			var image bytes.Buffer
			path := filepath.Join(dir, name+"."+ending)
			if err := encode(&image); err != nil {
				return fmt.Errorf("draw %s: %w", path, err)
			}
			if err := os.WriteFile(path, image.Bytes(), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// charts are the charts of measurements, by name of file.
func charts(all []measurement) map[string]*chart.Chart {
	charts := map[string]*chart.Chart{}
	for _, m := range all {
		if m.OverAllReduce == nil || m.Method == none {
			continue
		}
		name, computing := fmt.Sprintf("real-%d", m.Replicas), "on real cores"
		if m.Dictated > 0 {
			name, computing = fmt.Sprintf("dictated-%d", m.Replicas), fmt.Sprintf("that compute for %v a step", time.Duration(m.Dictated*float64(time.Second)))
		}
		c := charts[name]
		if c == nil {
			c = &chart.Chart{X: fmt.Sprintf("link in Gbit/s, as a power of 10 (%d replicas %s)", m.Replicas, computing), Y: "speed over that of allreduce"}
			charts[name] = c
		}
		label := strings.TrimSpace(m.Method + " " + m.Settings)
		i := slices.IndexFunc(c.Lines, func(l chart.Line) bool { return l.Name == label })
		if i < 0 {
			i = len(c.Lines)
			c.Lines = append(c.Lines, chart.Line{Name: label})
		}
		y := *m.OverAllReduce
		c.Lines[i].Points = append(c.Lines[i].Points, chart.Point{X: math.Log10(m.Link), Y: y, Low: y, High: y})
	}
	for _, c := range charts {
		for i := range c.Lines {
			slices.SortFunc(c.Lines[i].Points, func(a, b chart.Point) int { return int(math.Copysign(1, a.X-b.X)) })
		}
	}
	return charts
}
