// Command overhead measures what the executor and the in-process links cost by running stages that compute nothing: whatever
// time passes is ours. See README.md for the figures and their definitions.
package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// boundaryBytes of a micro-batch: activations of 1,024 positions, 256 wide. Frames cross by pointer, so it hardly matters.
const boundaryBytes = 1 << 20

func main() {
	seconds := flag.Float64("seconds", 0.3, "time of each measurement")
	repeats := flag.Int("repeats", 5, "measurements of each shape; the median is reported")
	report.Main("overhead", func(ctx context.Context) ([]report.Figure, error) {
		return run(ctx, time.Duration(*seconds*float64(time.Second)), *repeats)
	})
}

func run(ctx context.Context, each time.Duration, repeats int) ([]report.Figure, error) {
	var figures []report.Figure
	for _, stages := range []int{1, 2, 3, 4} {
		for _, pipelines := range []int{1, 2, 4} {
			s := shape{stages, pipelines, 16}
			measured, err := measure(ctx, s, each, repeats)
			if err != nil {
				return nil, fmt.Errorf("%v: %w", s, err)
			}
			figures = append(figures, measured...)
		}
	}
	return figures, nil
}

// shape of a run: every stage on a device of its own, which the pipelines share.
type shape struct{ stages, pipelines, micros int }

func (s shape) String() string {
	return fmt.Sprintf("K=%d,N=%d,M=%d", s.stages, s.pipelines, s.micros)
}

// sequence is the number of hops that must follow one another while every pipeline does a batch: a device executes 2M ops for each
// pipeline, and the first activation must reach the last stage and the last gradient come back.
func (s shape) sequence() int { return 2*s.micros*s.pipelines + 2*(s.stages-1) }

// measure runs a shape several times.
func measure(ctx context.Context, s shape, period time.Duration, repeats int) ([]report.Figure, error) {
	var micros, hops, used []float64
	for range repeats {
		wall, cpu, err := batchTime(ctx, s, period)
		if err != nil {
			return nil, err
		}
		micros = append(micros, microseconds(wall)/float64(s.micros*s.pipelines))
		hops = append(hops, microseconds(wall)/float64(s.sequence()))
		used = append(used, microseconds(cpu)/float64(2*s.micros*s.pipelines*s.stages))
	}
	figure := func(metric string, values []float64, bar, aim float64) report.Figure {
		return report.Figure{
			Metric: fmt.Sprintf("%s[%v]", metric, s), Value: report.Median(values), Unit: "us", Bar: bar, Aim: aim, AtMost: true,
			Conditions: map[string]any{
				"stages": s.stages, "pipelines": s.pipelines, "micro_batches": s.micros, "schedule": "1f1b", "compute": "none",
				"boundary_bytes": boundaryBytes, "cores": runtime.NumCPU(), "go": runtime.Version(), "median_of": repeats,
			},
		}
	}
	each := float64(s.sequence()) / float64(s.micros*s.pipelines) // hops that a micro-batch adds to a batch
	return []report.Figure{
		figure("stage_micro_batch", micros, hopBar*each, hopAim*each), figure("hop", hops, hopBar, hopAim), figure("hop_cpu", used, hopBar, hopAim),
	}, nil
}

// hopBar is what a hop may take, in microseconds, and hopAim what it should.
const hopBar, hopAim = 20, 5

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// batchTime trains for about the given time and returns the time from the end of one batch to the end of the next, in which
// every pipeline does one, and the processor time that the process used for it.
func batchTime(ctx context.Context, s shape, each time.Duration) (wall, cpu time.Duration, err error) {
	plan, _, err := schedule.Generate("1f1b", schedule.Request{Devices: s.stages, MicroBatches: s.micros})
	if err != nil {
		return 0, 0, err
	}
	method, err := elastic.NewMethod("elastic", elastic.Config{Pipelines: s.pipelines})
	if err != nil {
		return 0, 0, err
	}
	runtime.GOMAXPROCS(pipeline.Processors(s.stages))
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	clock := &clock{until: each, stop: cancel}
	c := pipeline.Config{
		Plan: plan, MicroBatches: s.micros, Pipelines: s.pipelines, Method: method, ClipNorm: 1, FinalRound: 1 << 40,
		LearningRate: func(uint64) float32 { return 1 },
		Events:       pipeline.Events{OnStep: clock.onStep},
	}
	for k := range s.stages {
		c.Stages = append(c.Stages, pipeline.StageConfig{
			Index: k,
			Build: func(int) (stage.Stage, error) {
				return nothing{index: k, stages: s.stages, vector: flat.NewHost(1)}, nil
			},
			Source: func(int) pipeline.Source { return nothing{} },
		})
	}
	g, err := pipeline.New(c)
	if err != nil {
		return 0, 0, err
	}
	if err := g.Run(running); running.Err() == nil {
		return 0, 0, fmt.Errorf("training ended by itself: %w", err)
	}
	if ctx.Err() != nil {
		return 0, 0, ctx.Err()
	}
	wall, cpu = clock.perBatch(s.pipelines)
	return wall, cpu, nil
}

// warmup is the steps before the clock runs: pools fill, threads start.
const warmup = 20

// clock measures from step to step of any pipeline.
type clock struct {
	until time.Duration
	stop  context.CancelFunc

	mu          sync.Mutex
	steps       int
	start, last moment
}

// moment is a time, and the processor time used until then.
type moment struct {
	wall time.Time
	cpu  time.Duration
}

func now() moment {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		panic(err) // only for an invalid argument
	}
	return moment{time.Now(), time.Duration(used.Utime.Nano() + used.Stime.Nano())}
}

func (c *clock) onStep(pipeline.StepReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.steps++; c.steps < warmup {
		return
	}
	c.last = now()
	if c.steps == warmup {
		c.start = c.last
	} else if c.last.wall.Sub(c.start.wall) > c.until {
		c.stop()
	}
}

func (c *clock) perBatch(pipelines int) (wall, cpu time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	each := func(d time.Duration) time.Duration {
		return d * time.Duration(pipelines) / time.Duration(c.steps-warmup)
	}
	return each(c.last.wall.Sub(c.start.wall)), each(c.last.cpu - c.start.cpu)
}
