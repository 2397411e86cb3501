package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// What devices that also compute are measured on: eight of them, two pipelines, and passes long enough for a small model.
const (
	computeDevices   = 8
	computePipelines = 2
	computeMicros    = 16
	computeForward   = 20 * time.Millisecond
	computeLatency   = 5 * time.Millisecond
)

// compute measures how late devices are that also compute, and how much longer batches take than without.
func (b *bench) compute(ctx context.Context, width int) ([]report.Figure, error) {
	trials, spec, err := b.open(ctx, width)
	if err != nil {
		return nil, err
	}
	figures, err := b.computeOn(ctx, trials, spec)
	if closing := trials.Close(); err == nil {
		err = closing
	}
	return figures, err
}

func (b *bench) computeOn(ctx context.Context, trials *worker.Trials, spec job.Job) ([]report.Figure, error) {
	costs := schedule.Uniform(computeDevices, computeForward.Seconds(), 2*computeForward.Seconds(), computeLatency.Seconds())
	plan, _, err := schedule.Generate("1f1b", schedule.Request{Devices: computeDevices, MicroBatches: computeMicros, Costs: &costs})
	if err != nil {
		return nil, err
	}
	spec.Stages, spec.Pipelines, spec.MicroBatches, spec.Schedule, spec.Train.Batch = computeDevices, computePipelines, computeMicros, "1f1b", computeMicros
	spec.Devices.CPU.Count = spec.Stages
	e := &spec.Devices.Emulated
	e.Forward, e.Backward, e.Step = []time.Duration{computeForward}, []time.Duration{2 * computeForward}, []time.Duration{2 * time.Millisecond}
	e.Link.Latency = []time.Duration{computeLatency}
	var took [2]time.Duration
	var lag, busy float64
	var flops float64
	for i := range took {
		e.Compute = i == 1
		began, used := time.Now(), processorTime()
		r, err := trials.Run(ctx, worker.TrialConfig{Job: spec, Plan: plan, WarmUp: warmUp, Batches: b.batches})
		if err != nil {
			return nil, fmt.Errorf("compute %v: %w", e.Compute, err)
		}
		busy = (processorTime() - used).Seconds() / time.Since(began).Seconds() / float64(runtime.NumCPU())
		took[i], lag = (r.End-r.Start)/time.Duration(b.batches), 0
		for _, d := range r.Devices {
			lag = max(lag, d.Lag)
		}
		flops = r.Stages[computeDevices/2].Shape.ForwardFLOPs
	}
	width := spec.Model.Config["n_embd"]
	fmt.Fprintf(os.Stderr, "width %v: a forward of %.3g MFLOP in %v, cores busy %.0f%%; lag %.2f%%, a batch %v, without arithmetic %v: %+.2f%%\n",
		width, flops/1e6, computeForward, 100*busy, 100*lag, took[1], took[0], 100*(took[1].Seconds()/took[0].Seconds()-1))
	conditions := map[string]any{
		"devices": computeDevices, "pipelines": computePipelines, "micro_batches": computeMicros, "schedule": "1f1b", "forward_ms": milliseconds(computeForward),
		"link_ms": milliseconds(computeLatency), "width": width, "forward_mflop": flops / 1e6, "cores": runtime.NumCPU(), "cores_busy": busy, "go": runtime.Version(),
		"batch_ms": milliseconds(took[1]), "without_arithmetic_ms": milliseconds(took[0]),
	}
	return []report.Figure{
		{Metric: "lag[compute,K=8,N=2]", Unit: "%", Bar: 2, Aim: 1, AtMost: true, Value: 100 * lag, Conditions: conditions},
		{
			Metric: "batch[compute over none,K=8,N=2]", Unit: "%", Bar: 3, Aim: 1, AtMost: true,
			Value: 100 * (took[1].Seconds()/took[0].Seconds() - 1), Conditions: conditions,
		},
	}, nil
}

// processorTime is what this process has used of all cores.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
