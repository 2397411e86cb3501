// Recovery measures how long a job stands still when its worker is killed: from SIGKILL to the first step beyond the last
// commit. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// bound ends a wait that should take seconds.
const bound = time.Minute

func main() {
	kills := flag.Int("kills", 7, "how often its worker is killed")
	rig.Main("recovery", func(ctx context.Context, d *rig.Daemon) ([]report.Figure, error) { return measure(ctx, d, *kills) })
}

// outage is what one kill cost.
type outage struct {
	running, trained time.Duration // from the kill: to the next generation's start, and to its first step
	lost             uint64        // steps that were done and not committed
}

func measure(ctx context.Context, d *rig.Daemon, kills int) ([]report.Figure, error) {
	id, err := d.SubmitFile(ctx, "train.steps=1000000", "optimizer.warmup=0", "train.max_time=0s", "train.eval_every=0", "train.eval_samples=16",
		"center.commit_every=40")
	if err != nil {
		return nil, err
	}
	var running, trained []float64
	var last api.JobStatus
	for range kills {
		cost, status, err := kill(ctx, d, id, last.CommittedRound)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "killed: training again after %v, first step after %v, %d steps to repeat\n",
			cost.running.Round(time.Millisecond), cost.trained.Round(time.Millisecond), cost.lost)
		running, trained, last = append(running, cost.running.Seconds()), append(trained, cost.trained.Seconds()), status
	}
	if _, err := d.Cancel(ctx, id); err != nil {
		return nil, err
	}
	conditions := map[string]any{
		"job": d.File, "parameters": last.Parameters, "kills": kills, "trained_s": trained, "running_s": running, "device": last.Device,
	}
	return []report.Figure{
		{
			Metric: "worker SIGKILL to training again, longest", Value: slices.Max(running), Unit: "s", Bar: 3, Aim: 1,
			AtMost: true, Conditions: conditions,
		},
		{
			Metric: "worker SIGKILL to the first new step done, longest", Value: slices.Max(trained), Unit: "s", Bar: 3, Aim: 1,
			AtMost: true, Conditions: conditions,
		},
	}, nil
}

// kill waits for a commit after the given round and for progress beyond it, kills the worker and times what follows.
func kill(ctx context.Context, d *rig.Daemon, id string, after uint64) (outage, api.JobStatus, error) {
	var before api.JobStatus
	err := until(ctx, d, id, "progress beyond a commit", func(s api.JobStatus) bool {
		before = s
		return s.State == api.Running && s.CommittedRound > after && s.Round > s.CommittedRound+2
	})
	if err != nil {
		return outage{}, before, err
	}
	pid, err := d.Worker()
	if err != nil {
		return outage{}, before, err
	}
	start := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return outage{}, before, fmt.Errorf("kill worker %d: %w", pid, err)
	}
	var cost outage
	var now api.JobStatus
	err = until(ctx, d, id, "the next generation", func(s api.JobStatus) bool {
		if s.Step < before.CommittedRound {
			err = fmt.Errorf("step %d was shown after the commit of round %d", s.Step, before.CommittedRound)
		}
		now = s
		return s.Generation > before.Generation && s.State == api.Running
	})
	cost.running = time.Since(start)
	if err != nil {
		return cost, now, err
	}
	cost.lost = before.Step - min(before.Step, now.CommittedRound)
	err = until(ctx, d, id, "a step", func(s api.JobStatus) bool {
		now = s
		return s.Step > s.CommittedRound && s.Loss != nil && s.Generation > before.Generation
	})
	cost.trained = time.Since(start)
	return cost, now, err
}

// until polls the job's status.
func until(ctx context.Context, d *rig.Daemon, id, what string, reached func(api.JobStatus) bool) (err error) {
	waited := rig.Poll(ctx, bound, what, func() bool {
		var status api.JobStatus
		if status, err = d.Job(ctx, id); err == nil && status.State.Ended() {
			err = fmt.Errorf("the job is %s: %s", status.State, status.Reason)
		}
		return err != nil || reached(status)
	})
	if err = errors.Join(err, waited); err != nil {
		return fmt.Errorf("wait for %s: %w", what, err)
	}
	return nil
}
