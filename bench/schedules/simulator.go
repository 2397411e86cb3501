package main

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/schedule"
)

// The plan that the simulator has to cope with.
const (
	hugeStages       = 1024
	hugeMicroBatches = 4096
)

// measureSimulator times huge plans on one core, and the memory of the process that holds them.
func measureSimulator(context.Context) ([]report.Figure, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	costs := schedule.Uniform(hugeStages, 1, 2, 0.5)
	costs.ActivationBytes = make([]int64, hugeStages)
	for s := range costs.ActivationBytes {
		costs.ActivationBytes[s] = 1 << 20
	}
	var figures []report.Figure
	for _, name := range []string{"gpipe", "1f1b", "afp"} {
		plan, _, err := schedule.Generate(name, schedule.Request{Devices: hugeStages, MicroBatches: hugeMicroBatches, Costs: &costs})
		if err != nil {
			return nil, err
		}
		start := time.Now()
		result, err := schedule.SimulateMany(plan, costs, schedule.Load{})
		if err != nil {
			return nil, err
		}
		took := time.Since(start)
		figures = append(figures, report.Figure{
			Metric: "time to simulate " + name, Value: took.Seconds(), Unit: "s", Bar: 10, Aim: 3, AtMost: true,
			Conditions: map[string]any{
				"stages": hugeStages, "micro_batches": hugeMicroBatches, "ops": plan.Ops(), "cores": 1,
				"ns_per_op": float64(took.Nanoseconds()) / float64(plan.Ops()), "simulated_batch_time": result.Makespan, "check": "included",
			},
		})
	}
	peak, err := peakMemory()
	if err != nil {
		return nil, err
	}
	return append(figures, report.Figure{
		Metric: "memory of simulating them", Value: peak / (1 << 30), Unit: "GiB", Bar: 4, Aim: 1, AtMost: true,
		Conditions: map[string]any{"what": "largest resident set of the process, the plan included"},
	}), nil
}

// peakMemory is the most bytes that were resident at once.
func peakMemory() (float64, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("memory of this process: %w", err)
	}
	return float64(usage.Maxrss) * 1024, nil // kilobytes on Linux
}
