// Command emulated measures pipelines of emulated devices in real time and holds them against the simulator. See README.md for
// the figures and their definitions.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/model"
)

func main() {
	forward := flag.Duration("forward", 6*time.Millisecond, "a device's forward of one micro-batch; its backward takes twice that")
	batches := flag.Int("batches", 5, "batches that are measured of 8 devices and more, of which the median counts; more of fewer devices")
	only := flag.String("only", "", "measure the rows whose name contains this")
	width := flag.Int("width", 160, "n_embd of the model that devices compute, in the rows named compute")
	report.Main("emulated", func(ctx context.Context) ([]report.Figure, error) { return run(ctx, *forward, *batches, *only, *width) })
}

// setting is a pipeline of emulated devices.
type setting struct {
	schedule        string
	devices, micros int
	forward         time.Duration // of a device
	latency         time.Duration // of each link, one way
}

func (s setting) String() string {
	name := fmt.Sprintf("%s,K=%d,M=%d", s.schedule, s.devices, s.micros)
	if s.latency > 0 {
		name += ",slow links"
	}
	return name
}

func run(ctx context.Context, forward time.Duration, batches int, only string, width int) (figures []report.Figure, err error) {
	b, err := newBench(ctx, batches)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, devices := range []int{2, 4, 8, 16} {
		for _, name := range []string{"gpipe", "1f1b", "afp", "interleaved", "zb-h1"} {
			s := setting{schedule: name, devices: devices, micros: max(8, 2*devices), forward: forward}
			if !strings.Contains(s.String(), only) {
				continue
			}
			f, _, err := b.compare(ctx, s)
			if err != nil {
				return nil, err
			}
			figures = append(figures, f)
		}
	}
	if strings.Contains("slow links", only) {
		slow, err := b.slowLinks(ctx, forward)
		if err != nil {
			return nil, err
		}
		figures = append(figures, slow...)
	}
	if strings.Contains("compute", only) {
		computed, err := b.compute(ctx, width)
		if err != nil {
			return nil, err
		}
		figures = append(figures, computed...)
	}
	return figures, nil
}

// bench runs one job laid over devices in many ways.
type bench struct {
	batches int
	dir     string
	spec    job.Job
	trials  *worker.Trials
}

// newBench opens a small language model of more layers than any setting has stages, and some text.
func newBench(ctx context.Context, batches int) (*bench, error) {
	dir, err := os.MkdirTemp("", "avgpipe-emulated-")
	if err != nil {
		return nil, err
	}
	b := &bench{batches: batches, dir: dir}
	if err := os.WriteFile(b.text(), []byte(strings.Repeat("a line of text that nobody learns\n", 2000)), 0o600); err != nil {
		return nil, errors.Join(err, b.close())
	}
	if b.trials, b.spec, err = b.open(ctx, 32); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bench) text() string { return filepath.Join(b.dir, "text") }

// open opens a job of a model of such a width.
func (b *bench) open(ctx context.Context, width int) (*worker.Trials, job.Job, error) {
	j := *job.Default()
	j.Name = "emulated"
	j.Model = job.Model{Family: "gpt2", Config: map[string]any{"n_layer": 34, "n_head": 2, "n_embd": width, "n_positions": 32, "vocab_size": 256}}
	j.Data.Files = []string{b.text()}
	j.Optimizer.LearningRate = 1e-3
	j.Pipelines, j.Averaging.Alpha, j.Averaging.Tau = 1, 0.25, 1
	j.Devices.Kind, j.Devices.CPU = job.KindEmulated, job.CPU{Count: 1, Threads: 1}
	m, err := model.Build(j.Model.Family, j.Model.Config)
	if err != nil {
		return nil, j, err
	}
	s, err := spec.New(&spec.Resolution{Job: j}, m, nil, false)
	if err != nil {
		return nil, j, err
	}
	trials, err := worker.OpenTrials(ctx, s, cuda.Config{}, "")
	return trials, j, err
}

func (b *bench) close() error {
	err := os.RemoveAll(b.dir)
	if b.trials != nil {
		err = errors.Join(err, b.trials.Close())
	}
	return err
}

// measure returns the median time of a batch and the simulator's.
func (b *bench) measure(ctx context.Context, s setting) (measured, simulated time.Duration, err error) {
	plan, _, err := schedule.Generate(s.schedule, schedule.Request{Devices: s.devices, MicroBatches: s.micros, Costs: s.costs()})
	if err != nil {
		return 0, 0, err
	}
	chunks := plan.Stages() / s.devices
	forward := s.forward / time.Duration(chunks)
	costs := schedule.Uniform(plan.Stages(), forward.Seconds(), 2*forward.Seconds(), s.latency.Seconds())
	batches := b.batches * max(1, 8/s.devices) // of short ones more: they are measured as long
	timed, err := schedule.SimulateMany(plan, costs, schedule.Load{Batches: batches + warmUp})
	if err != nil {
		return 0, 0, err
	}
	spec := b.spec
	spec.Stages, spec.MicroBatches, spec.Schedule, spec.Train.Batch = job.Count(s.devices), job.Count(s.micros), s.schedule, s.micros
	spec.Devices.CPU.Count = spec.Stages
	e := &spec.Devices.Emulated
	e.Forward, e.Backward = []time.Duration{forward}, []time.Duration{2 * forward}
	e.Link.Latency = []time.Duration{s.latency}
	result, err := b.trials.Run(ctx, worker.TrialConfig{Job: spec, Plan: plan, WarmUp: warmUp, Batches: batches})
	if err != nil {
		return 0, 0, err
	}
	slices.Sort(result.Batches)
	return result.Batches[len(result.Batches)/2], time.Duration(timed.Period * float64(time.Second)), nil
}

// warmUp is the batches before the clock runs.
const warmUp = 2

// costs are what afp sizes its warm-up by; nil where links take no time.
func (s setting) costs() *schedule.Costs {
	if s.latency == 0 {
		return nil
	}
	c := schedule.Uniform(s.devices, s.forward.Seconds(), 2*s.forward.Seconds(), s.latency.Seconds())
	return &c
}

// compare holds a measured batch against the simulated one.
func (b *bench) compare(ctx context.Context, s setting) (f report.Figure, measured time.Duration, err error) {
	measured, simulated, err := b.measure(ctx, s)
	if err != nil {
		return f, 0, fmt.Errorf("%v: %w", s, err)
	}
	fmt.Fprintf(os.Stderr, "%-28v measured %v, simulated %v\n", s, measured, simulated)
	return report.Figure{
		Metric: fmt.Sprintf("error[%v]", s), Unit: "%", Bar: 3, Aim: 1, AtMost: true,
		Value:      100 * math.Abs(measured.Seconds()/simulated.Seconds()-1),
		Conditions: b.conditions(s, measured, simulated),
	}, measured, nil
}

// slowLinks measures how much faster afp is than 1f1b where a message takes half as long as a micro-batch's work on a device.
func (b *bench) slowLinks(ctx context.Context, forward time.Duration) ([]report.Figure, error) {
	var times [2]time.Duration
	var figures []report.Figure
	s := setting{devices: 4, micros: 16, forward: forward, latency: 3 * forward / 2}
	for i, name := range []string{"1f1b", "afp"} {
		s.schedule = name
		f, measured, err := b.compare(ctx, s)
		if err != nil {
			return nil, err
		}
		figures, times[i] = append(figures, f), measured
	}
	return append(figures, report.Figure{
		Metric: "speed[afp over 1f1b,K=4,M=16,slow links]", Unit: "times", Bar: 1.2, Aim: 1.3,
		Value:      times[0].Seconds() / times[1].Seconds(),
		Conditions: map[string]any{"afp_ms": milliseconds(times[1]), "1f1b_ms": milliseconds(times[0])},
	}), nil
}

func (b *bench) conditions(s setting, measured, simulated time.Duration) map[string]any {
	return map[string]any{
		"devices": s.devices, "micro_batches": s.micros, "schedule": s.schedule, "forward_ms": milliseconds(s.forward),
		"link_ms": milliseconds(s.latency), "median_of": b.batches * max(1, 8/s.devices), "cores": runtime.NumCPU(), "go": runtime.Version(),
		"measured_ms": milliseconds(measured), "simulated_ms": milliseconds(simulated),
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
