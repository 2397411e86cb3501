// Command overhead measures what the executor and the in-process links cost by running stages that compute nothing: whatever
// time passes is ours. See README.md for the figures and their definitions.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
)

// boundaryBytes of a micro-batch: activations of 1,024 positions, 256 wide. Frames cross by pointer, so it hardly matters.
const boundaryBytes = 1 << 20

func main() {
	seconds := flag.Float64("seconds", 0.3, "time of each measurement")
	repeats := flag.Int("repeats", 5, "measurements of each shape; the median is reported")
	flag.Parse()
	if err := run(time.Duration(*seconds*float64(time.Second)), *repeats); err != nil {
		fmt.Fprintln(os.Stderr, "overhead:", err)
		os.Exit(1)
	}
}

func run(each time.Duration, repeats int) error {
	var figures []report.Figure
	for _, s := range []shape{{2, 1, 16}, {3, 1, 16}, {4, 1, 16}, {2, 2, 16}, {3, 2, 16}, {4, 2, 16}} {
		measured, err := measure(s, each, repeats)
		if err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
		figures = append(figures, measured...)
	}
	return report.Report(os.Stdout, os.Stderr, figures...)
}

// shape of a run.
type shape struct{ stages, pipelines, micros int }

func (s shape) String() string {
	return fmt.Sprintf("K=%d,N=%d,M=%d", s.stages, s.pipelines, s.micros)
}

// criticalPath is the number of op executions that must follow one another in a batch of every pipeline: a stage runs
// 2M for each pipeline, and the first activation must reach the last stage and the last gradient come back. With more
// stages than cores, executions of several stages share a core and follow one another there.
func (s shape) criticalPath() int {
	work := 2 * s.micros * s.pipelines
	return max(work+2*(s.stages-1), work*s.stages/min(s.stages, runtime.NumCPU()))
}

// measure runs a shape, and the same with four times the micro-batches, whose difference leaves the end of the batch out.
func measure(s shape, each time.Duration, repeats int) ([]report.Figure, error) {
	long := s
	long.micros *= 4
	var whole, without []float64
	for range repeats {
		batch, err := batchTime(s, each)
		if err != nil {
			return nil, err
		}
		longer, err := batchTime(long, each)
		if err != nil {
			return nil, err
		}
		whole = append(whole, microseconds(batch)/float64(s.criticalPath()))
		without = append(without, microseconds(longer-batch)/float64(long.criticalPath()-s.criticalPath()))
	}
	figure := func(metric string, values []float64) report.Figure {
		return report.Figure{
			Bench: "overhead", Metric: fmt.Sprintf("%s[%v]", metric, s), Value: report.Median(values), Unit: "us", Bar: 20, Aim: 5, AtMost: true,
			Conditions: map[string]any{
				"stages": s.stages, "pipelines": s.pipelines, "micro_batches": s.micros, "schedule": "1f1b", "compute": "none",
				"boundary_bytes": boundaryBytes, "cores": runtime.NumCPU(), "go": runtime.Version(), "median_of": repeats,
			},
		}
	}
	return []report.Figure{figure("hop", whole), figure("hop_without_batch_end", without)}, nil
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// batchTime trains for about the given time and returns the time from the end of one batch to the end of the next, in which
// every pipeline does one.
func batchTime(s shape, each time.Duration) (time.Duration, error) {
	plan, _, err := schedule.Generate("1f1b", schedule.Request{Devices: s.stages, MicroBatches: s.micros})
	if err != nil {
		return 0, err
	}
	method, err := elastic.NewMethod("elastic", elastic.Config{Pipelines: s.pipelines})
	if err != nil {
		return 0, err
	}
	runtime.GOMAXPROCS(pipeline.Processors(s.stages))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	clock := &clock{until: each, stop: cancel}
	c := pipeline.Config{
		Plan: plan, MicroBatches: s.micros, Pipelines: s.pipelines, Method: method, ClipNorm: 1, FinalRound: 1 << 40,
		LearningRate: func(uint64) float32 { return 1 },
		Events:       pipeline.Events{OnStep: clock.onStep},
	}
	for k := range s.stages {
		c.Stages = append(c.Stages, pipeline.StageConfig{
			Index:  k,
			Build:  func(int) (stage.Stage, error) { return newNothing(k, s.stages), nil },
			Source: func(int) pipeline.Source { return nothing{} },
		})
	}
	g, err := pipeline.New(c)
	if err != nil {
		return 0, err
	}
	if err := g.Run(ctx); ctx.Err() == nil {
		return 0, fmt.Errorf("training ended by itself: %w", err)
	}
	return clock.perBatch(s.pipelines), nil
}

// warmup is the steps before the clock runs: pools fill, threads start.
const warmup = 20

// clock measures from step to step of any pipeline.
type clock struct {
	until time.Duration
	stop  context.CancelFunc

	mu          sync.Mutex
	steps       int
	start, last time.Time
}

func (c *clock) onStep(pipeline.StepReport) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.steps++; c.steps == warmup {
		c.start = now
	}
	if c.steps > warmup {
		c.last = now
		if now.Sub(c.start) > c.until {
			c.stop()
		}
	}
}

func (c *clock) perBatch(pipelines int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.Sub(c.start) * time.Duration(pipelines) / time.Duration(c.steps-warmup)
}
