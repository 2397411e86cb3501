package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/chart"
	"github.com/avgpipe/avgpipe/schedule"
)

// stageCounts are the pipelines' lengths in the figures.
var stageCounts = []int{2, 4, 8, 16, 32, 64}

// The costs of the figures, in units of a forward: a backward of two and a link of which there and back take as long as both.
const (
	forward  = 1.0
	backward = 2.0
	slowLink = (forward + backward) / 2
)

// figure is one image: a line for each name, of a point at each x.
type figure struct {
	file, x, y string
	lines      []string
	xs         []int
	at         func(line, x int) (chart.Point, error)
}

// figures are what AvgPipe (Chen et al. 2023) argues with.
func figures() []figure {
	var counted []string
	for _, stages := range stageCounts {
		counted = append(counted, fmt.Sprintf("%d stages", stages))
	}
	const doubling = "stages K, as a power of 2 (M = 4K, 2c = F + B)"
	names := []string{"afp", "1f1b", "gpipe"}
	bySchedule := func(value func(r schedule.Result, stages int) float64) func(line, stages int) (chart.Point, error) {
		return func(line, stages int) (chart.Point, error) {
			r, err := simulate(names[line], 4*stages, schedule.Uniform(stages, forward, backward, slowLink))
			if err != nil {
				return chart.Point{}, err
			}
			return chart.Point{X: math.Log2(float64(stages)), Y: value(r, stages)}, nil
		}
	}
	return []figure{
		{"pipelines.svg", "pipelines N on the same devices (afp, M = 2K, 2c = F + B)", "speed over that of one pipeline", counted, []int{1, 2, 3, 4, 5, 6}, byPipelines},
		{
			"micro-batches.svg", "micro-batches M of a batch of 256, as a power of 2 (afp; an op takes 1/16 + its samples)",
			"speed over that of devices never idle", counted,
			[]int{1, 2, 4, 8, 16, 32, 64, 128, 256},
			byMicroBatches,
		},
		{"memory.svg", doubling, "micro-batches in flight on the first stage", names, stageCounts, bySchedule(func(r schedule.Result, _ int) float64 {
			return float64(r.InFlight[0])
		})},
		{"schedules.svg", doubling, "batch time over M (F + B)", names, stageCounts, bySchedule(func(r schedule.Result, stages int) float64 {
			return r.Makespan / (4 * float64(stages) * (forward + backward))
		})},
	}
}

// byPipelines: pipelines that share devices fill each other's bubbles, until there are none left.
func byPipelines(line, pipelines int) (chart.Point, error) {
	stages := stageCounts[line]
	var throughput [2]float64
	for i, n := range []int{1, pipelines} {
		r, err := simulateMany("afp", 2*stages, schedule.Uniform(stages, forward, backward, slowLink), schedule.Load{Pipelines: n, Batches: 8})
		if err != nil {
			return chart.Point{}, err
		}
		throughput[i] = r.Throughput()
	}
	return chart.Point{X: float64(pipelines), Y: throughput[1] / throughput[0]}, nil
}

// byMicroBatches: more micro-batches make smaller bubbles, until what each costs in itself outweighs that.
func byMicroBatches(line, microBatches int) (chart.Point, error) {
	const batch, fixed = 256, 1.0 / 16 // samples; the share of a sample's time that each op takes however small it is
	samples := float64(batch) / float64(microBatches)
	r, err := simulate("afp", microBatches, schedule.Uniform(stageCounts[line], forward*(fixed+samples), backward*(fixed+samples), slowLink*samples))
	if err != nil {
		return chart.Point{}, err
	}
	return chart.Point{X: math.Log2(float64(microBatches)), Y: batch * (forward + backward) / r.Makespan}, nil
}

// drawFigures simulates and draws them.
func drawFigures(dir string) ([]report.Figure, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, f := range figures() {
		if err := f.draw(filepath.Join(dir, f.file)); err != nil {
			return nil, fmt.Errorf("%s: %w", f.file, err)
		}
	}
	result, err := simulateMany("afp", 8, schedule.Uniform(2, forward, backward, slowLink), schedule.Load{Pipelines: 2, Batches: 16})
	if err != nil {
		return nil, err
	}
	return []report.Figure{{
		Metric: "simulated busy share of two devices by two pipelines", Value: min(result.Busy[0], result.Busy[1]) / result.Makespan, Unit: "of 1",
		Bar: 0.95, Aim: 0.95, Conditions: map[string]any{"schedule": "afp", "micro_batches": 8, "link": "2c = F + B", "batches": 16},
	}}, nil
}

func (f figure) draw(path string) error {
	c := chart.Chart{X: f.x, Y: f.y}
	for i, name := range f.lines {
		line := chart.Line{Name: name}
		for _, x := range f.xs {
			point, err := f.at(i, x)
			if err != nil {
				return err
			}
			line.Points = append(line.Points, point)
		}
		c.Lines = append(c.Lines, line)
	}
	var image bytes.Buffer
	if err := c.SVG(&image); err != nil {
		return err
	}
	return os.WriteFile(path, image.Bytes(), 0o644)
}
