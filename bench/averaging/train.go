package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// result is what a run came to.
type result struct {
	loss      float64 // of the center, on held-out samples, nats
	accuracy  float64 // of the center, there; 0 where nothing is classified
	untrained float64
	averaging string  // as status shows it
	share     float64 // of the device's time that averaging took at the end, 0..1: its arithmetic, and waits for the center
	diverged  bool    // it has no loss: the rate is too high
}

func (r result) String() string {
	if r.diverged {
		return "diverged"
	}
	return fmt.Sprintf("loss %.4f", r.loss)
}

// trainAll trains every run, some jobs at a time, and says how far it is.
func trainAll(ctx context.Context, d *rig.Daemon, o options) (map[run]result, error) {
	runs, total := matrix(o), 0 // samples
	for _, r := range runs {
		total += r.samples()
	}
	fmt.Fprintf(os.Stderr, "%s: %d runs of %.1f million samples\n", o.name, len(runs), float64(total)/1e6)
	start, done := time.Now(), 0 // samples
	results := map[run]result{}
	var mu sync.Mutex // of done and results
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.jobs)
	for _, r := range runs {
		g.Go(func() error {
			one, err := o.train(ctx, d, r)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			results[r], done = one, done+r.samples()
			part := float64(done) / float64(total)
			left := time.Duration(float64(time.Since(start)) * (1 - part) / part)
			fmt.Fprintf(os.Stderr, "%s: %s; %.0f%%, %s left\n", r, one, 100*part, left.Round(time.Minute))
			return nil
		})
	}
	return results, g.Wait()
}

// divergence is why a job fails whose rate is too high.
var divergence = regexp.MustCompile(`(loss|norm) is (NaN|[+-]Inf)`)

// train runs one job to its end, all pipelines on one core: in how many stages they run does not change what they compute.
func (w *workload) train(ctx context.Context, d *rig.Daemon, r run) (result, error) {
	with := *d
	with.File = w.file
	status, err := with.Run(ctx, slices.Concat([]string{
		"stages=1", "devices.cpu.count=1", "devices.cpu.threads=1", "schedule=afp", "micro_batches=1",
		"pipelines=" + strconv.Itoa(r.Pipelines), r.section(),
		// A job's steps and warm-up are batches of all pipelines together.
		"train.batch=" + strconv.Itoa(r.Batch), "train.steps=" + strconv.Itoa(r.Steps*r.Pipelines),
		"optimizer.warmup=" + strconv.Itoa(w.warmup*r.Pipelines), "train.max_time=0s", "train.eval_every=0",
		"train.eval_samples=" + strconv.Itoa(w.heldOut), "optimizer.lr=" + r.Rate, "seed=" + strconv.Itoa(r.Seed),
		"center.state=center", "center.commit_every=" + strconv.Itoa(r.Steps),
	}, w.settings)...)
	switch {
	case status.State == api.Failed && divergence.MatchString(status.Reason):
		return result{diverged: true}, nil
	case err != nil:
		return result{}, fmt.Errorf("%s: %w", r, err)
	case status.EvalLoss == nil || status.InitialLoss == nil:
		return result{}, fmt.Errorf("%s: the job is done and its status has no loss", r)
	case w.classes && status.Accuracy == nil:
		return result{}, fmt.Errorf("%s: the job is done and its status has no accuracy", r)
	case status.SamplesSeen != uint64(r.samples()):
		return result{}, fmt.Errorf("%s: trained on %d samples, expected %d", r, status.SamplesSeen, r.samples())
	}
	one := result{loss: *status.EvalLoss, untrained: *status.InitialLoss, averaging: status.Averaging}
	for _, s := range status.StageStatus {
		one.share = max(one.share, s.Average)
	}
	if w.classes {
		one.accuracy = *status.Accuracy
	}
	return one, nil
}
