package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// wanted are the runs that the comparison takes of one model, every side with each batch and learning rate; of those, the ones that are named.
func (o options) wanted(w workload) (all []quality, err error) {
	have := map[string]bool{}
	want := func(side string, devices, pipelines, micros int, rates []float64) {
		for _, seed := range o.seeds {
			for _, lr := range rates {
				q := quality{Model: w.name, Side: side, Devices: devices, Pipelines: pipelines, Micros: micros, Micro: w.micro, Rate: lr, Seed: seed}
				if !have[q.key()] {
					have[q.key()], all = true, append(all, q)
				}
			}
		}
	}
	for _, micros := range o.micros {
		want(synchronous, 1, 1, micros, w.rates)
	}
	for _, devices := range o.devices {
		for _, micros := range o.shares {
			for _, link := range o.links {
				c, err := setting{devices, link}.choose(micros)
				if err != nil {
					return nil, err
				}
				want(averaged, 1, c.pipelines, micros, w.rates)
			}
		}
		want(pipeDream2BW, devices, 1, o.updating, w.rates)
		want(pipeDream, devices, 1, o.updating, w.single)
		for _, micros := range o.updatingShares {
			for _, n := range o.given {
				want(averagedPipeDream, devices, n, micros, w.single)
			}
		}
	}
	return slices.DeleteFunc(all, o.leaves), nil
}

// leaves reports whether runs are named and this is none of them.
func (o options) leaves(q quality) bool { return o.runs != nil && !o.runs.MatchString(q.key()) }

// trainAll trains what is wanted and not yet recorded, some jobs at a time.
func trainAll(ctx context.Context, d *rig.Daemon, o options) ([]report.Figure, error) {
	recorded, err := records[quality](o.results, qualityFile)
	if err != nil {
		return nil, err
	}
	have := map[string]bool{}
	for _, q := range recorded {
		for _, w := range o.models {
			if w.name == q.Model && q.goneTo(w) {
				have[q.key()] = true
			}
		}
	}
	var mu sync.Mutex // of the file
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.jobs)
	for _, w := range o.models {
		all, err := o.wanted(w)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "%s: %d runs\n", w.name, len(all))
		for _, q := range all {
			if have[q.key()] {
				continue
			}
			g.Go(func() error {
				q, err := w.train(ctx, d, o, q)
				if err != nil {
					return fmt.Errorf("%s: %w", q.key(), err)
				}
				for _, target := range w.targets {
					samples, reached := q.samplesTo(target)
					fmt.Fprintf(os.Stderr, "%s: loss %.4f; target %g reached %v after %.0f samples\n", q.key(), q.Loss[len(q.Loss)-1], target, reached, samples)
				}
				mu.Lock()
				defer mu.Unlock()
				return add(o.results, qualityFile, q)
			})
		}
	}
	return nil, g.Wait()
}

// training is what a run trains with, whatever it runs on.
func (w workload) training(q quality, o options) []string {
	batch := q.Micros * q.Micro
	tau := q.roundBatches(w)
	return []string{
		"pipelines=" + strconv.Itoa(q.Pipelines), "train.batch=" + strconv.Itoa(batch), "train.samples=" + strconv.Itoa(w.budget),
		// A job's warm-up is in batches of all pipelines together, evaluations are in rounds.
		"optimizer.warmup=" + strconv.Itoa(max(1, w.warmup/batch)), "train.eval_every=" + strconv.Itoa(max(1, w.every/q.batch()/tau)), "averaging.tau=" + strconv.Itoa(tau),
		"optimizer.lr=" + strconv.FormatFloat(q.Rate, 'g', -1, 64), "seed=" + strconv.Itoa(q.Seed),
		"train.eval_samples=" + strconv.Itoa(o.heldOut), "center.state=center", "center.commit_every=1000000",
	}
}

// train runs one job until it has reached the last target, as fast as this machine can.
func (w workload) train(ctx context.Context, d *rig.Daemon, o options, q quality) (quality, error) {
	set := append(w.training(q, o), "devices.cpu.threads=1", "stages="+strconv.Itoa(q.Devices))
	if lies(q.Side) {
		// More stages than cores: devices of no time that compute.
		set = append(set, "devices.kind=emulated", "devices.emulated.compute=true", "devices.emulated.flops=1e18",
			"schedule="+scheduleOf(q.Side), "micro_batches="+strconv.Itoa(q.Micros))
	} else { // the sum of the gradients is the same in one portion
		set = append(set, "devices.kind=cpu", "devices.cpu.count=1", "schedule=1f1b", "micro_batches=1")
	}
	at := *d
	at.File = w.file(o.jobFiles)
	last, h, err := untilLoss(ctx, &at, w.last(), set)
	if err != nil {
		return q, err
	}
	q.Averaging, q.Parameters = last.Averaging, last.Parameters
	for _, e := range h.Evaluations {
		q.Samples, q.Loss = append(q.Samples, int(e.Steps)*q.batch()), append(q.Loss, e.Loss)
	}
	if len(q.Loss) < 2 {
		return q, fmt.Errorf("its history has %d evaluations; expected 2 at least", len(q.Loss))
	}
	return q, nil
}

// untilLoss runs a job until its held-out loss is at most so high, or its budget is used up.
func untilLoss(ctx context.Context, d *rig.Daemon, loss float64, set []string) (last api.JobStatus, h api.History, err error) {
	id, err := d.SubmitFile(ctx, set...)
	if err != nil {
		return last, h, err
	}
	var cancelled error
	reached := false
	last, err = d.Watch(ctx, id, func(s api.JobStatus) {
		if !reached && s.EvalLoss != nil && *s.EvalLoss <= loss && s.EvalRound > 0 {
			reached = true
			_, cancelled = d.Cancel(ctx, id)
		}
	})
	switch {
	case err != nil:
		return last, h, err
	case cancelled != nil && last.State != api.Done: // it may have ended by itself meanwhile
		return last, h, cancelled
	case last.State != api.Done && !reached:
		return last, h, fmt.Errorf("job %s is %s: %s", id, last.State, last.Reason)
	}
	h, err = d.History(ctx, id, api.HistoryRequest{})
	return last, h, err
}
