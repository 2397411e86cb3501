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

// drawFigures simulates and draws what AvgPipe (Chen et al. 2023) argues with.
func drawFigures(dir string) ([]report.Figure, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, figure := range []struct {
		file string
		draw func() (chart.Chart, error)
	}{
		{"pipelines.svg", speedByPipelines},
		{"micro-batches.svg", speedByMicroBatches},
		{"memory.svg", memoryByStages},
		{"schedules.svg", timeByStages},
	} {
		c, err := figure.draw()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", figure.file, err)
		}
		var image bytes.Buffer
		if err := c.SVG(&image); err != nil {
			return nil, fmt.Errorf("%s: %w", figure.file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, figure.file), image.Bytes(), 0o644); err != nil {
			return nil, err
		}
	}
	two := schedule.Uniform(2, forward, backward, slowLink)
	result, err := simulateMany("afp", 8, two, schedule.Load{Pipelines: 2, Batches: 16})
	if err != nil {
		return nil, err
	}
	return []report.Figure{{
		Metric: "simulated busy share of two devices by two pipelines", Value: min(result.Busy[0], result.Busy[1]) / result.Makespan, Unit: "of 1",
		Bar: 0.95, Aim: 0.95, Conditions: map[string]any{"schedule": "afp", "micro_batches": 8, "link": "2c = F + B", "batches": 16},
	}}, nil
}

// speedByPipelines: pipelines that share devices fill each other's bubbles, until there are none left.
func speedByPipelines() (chart.Chart, error) {
	c := chart.Chart{
		X: "pipelines N on the same devices (afp, M = 2K, 2c = F + B)", Y: "speed over that of one pipeline",
	}
	for _, stages := range stageCounts {
		line := chart.Line{Name: fmt.Sprintf("%d stages", stages)}
		costs := schedule.Uniform(stages, forward, backward, slowLink)
		first := 0.0
		for pipelines := 1; pipelines <= 6; pipelines++ {
			result, err := simulateMany("afp", 2*stages, costs, schedule.Load{Pipelines: pipelines, Batches: 8})
			if err != nil {
				return c, err
			}
			if pipelines == 1 {
				first = result.Throughput()
			}
			line.Points = append(line.Points, chart.Point{X: float64(pipelines), Y: result.Throughput() / first})
		}
		c.Lines = append(c.Lines, line)
	}
	return c, nil
}

// speedByMicroBatches: more micro-batches make smaller bubbles, until what each costs in itself outweighs that.
func speedByMicroBatches() (chart.Chart, error) {
	const batch, fixed = 256, 1.0 / 16 // samples; the share of a sample's time that each op takes however small it is
	c := chart.Chart{
		X: "micro-batches M of a batch of 256, as a power of 2 (afp; an op takes 1/16 + its samples)", Y: "speed over that of devices never idle",
	}
	for _, stages := range stageCounts {
		line := chart.Line{Name: fmt.Sprintf("%d stages", stages)}
		for microBatches := 1; microBatches <= batch; microBatches *= 2 {
			samples := float64(batch) / float64(microBatches)
			costs := schedule.Uniform(stages, forward*(fixed+samples), backward*(fixed+samples), slowLink*samples)
			result, err := simulate("afp", microBatches, costs)
			if err != nil {
				return c, err
			}
			line.Points = append(line.Points, chart.Point{X: math.Log2(float64(microBatches)), Y: batch * (forward + backward) / result.Makespan})
		}
		c.Lines = append(c.Lines, line)
	}
	return c, nil
}

// memoryByStages: the micro-batches in flight on the first stage.
func memoryByStages() (chart.Chart, error) {
	c := chart.Chart{
		X: "stages K, as a power of 2 (M = 4K, 2c = F + B)", Y: "micro-batches in flight on the first stage",
	}
	err := eachSchedule(&c, func(r schedule.Result, _ int) float64 { return float64(r.InFlight[0]) })
	return c, err
}

// timeByStages: AFAB (gpipe), 1F1B and AFP.
func timeByStages() (chart.Chart, error) {
	c := chart.Chart{
		X: "stages K, as a power of 2 (M = 4K, 2c = F + B)", Y: "batch time over M (F + B)",
	}
	err := eachSchedule(&c, func(r schedule.Result, stages int) float64 {
		return r.Makespan / (4 * float64(stages) * (forward + backward))
	})
	return c, err
}

func eachSchedule(c *chart.Chart, value func(r schedule.Result, stages int) float64) error {
	for _, name := range []string{"afp", "1f1b", "gpipe"} {
		line := chart.Line{Name: name}
		for _, stages := range stageCounts {
			result, err := simulate(name, 4*stages, schedule.Uniform(stages, forward, backward, slowLink))
			if err != nil {
				return err
			}
			line.Points = append(line.Points, chart.Point{X: math.Log2(float64(stages)), Y: value(result, stages)})
		}
		c.Lines = append(c.Lines, line)
	}
	return nil
}
