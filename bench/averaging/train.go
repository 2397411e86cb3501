package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// The model: 0.25 million parameters, bytes, 64 of them in a sample.
var model = []string{
	"model.config.n_layer=2", "model.config.n_embd=96", "model.config.n_head=3", "model.config.n_positions=64", "data.sequence=64",
}

const (
	heldOut = 1024 // samples that a loss is measured on
	warmup  = 50   // steps of each pipeline in which the learning rate rises
)

// result is one line of the results file.
type result struct {
	run
	Loss      float64 `json:"loss"` // of the center, on held-out samples, nats per byte
	Untrained float64 `json:"loss_untrained"`
	Averaging string  `json:"averaging"` // as status shows it
	Seconds   float64 `json:"seconds"`
}

// results is what has been trained so far. It may be used concurrently once it is open.
type results struct {
	path string // empty: they are not kept
	mu   sync.Mutex
	all  map[run]result
}

// open reads a results file; one that does not exist has none.
func open(path string) (*results, error) {
	r := &results{path: path, all: map[run]result{}}
	text, err := os.ReadFile(path)
	if err != nil && path != "" && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("results: %w", err)
	}
	lines := json.NewDecoder(bytes.NewReader(text))
	for lines.More() {
		var one result
		if err := lines.Decode(&one); err != nil {
			return nil, fmt.Errorf("results %s, byte %d: %w", path, lines.InputOffset(), err)
		}
		r.all[one.run] = one
	}
	return r, nil
}

// add keeps a result, in the file too.
func (r *results) add(one result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[one.run] = one
	if r.path == "" {
		return nil
	}
	f, err := os.OpenFile(r.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return errors.Join(json.NewEncoder(f).Encode(one), f.Close())
}

// trainAll trains what is missing, some jobs at a time, and says how far it is.
func trainAll(ctx context.Context, d *rig.Daemon, o options, losses *results) error {
	var missing []run
	total := 0 // samples
	for _, r := range matrix(o) {
		if _, known := losses.all[r]; !known {
			missing = append(missing, r)
			total += r.samples()
		}
	}
	fmt.Fprintf(os.Stderr, "%d runs of %.1f million samples; %d runs are there\n", len(missing), float64(total)/1e6, len(losses.all))
	start := time.Now()
	var done atomic.Int64 // samples
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.jobs)
	for _, r := range missing {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			one, err := train(ctx, d, r)
			if err == nil {
				err = losses.add(one)
			}
			if err != nil {
				return err
			}
			part := float64(done.Add(int64(r.samples()))) / float64(total)
			left := time.Duration(float64(time.Since(start)) * (1 - part) / part)
			fmt.Fprintf(os.Stderr, "%s: loss %.4f in %.0f s; %.0f%%, %s left\n", r, one.Loss, one.Seconds, 100*part, left.Round(time.Minute))
			return nil
		})
	}
	return g.Wait()
}

// train runs one job to its end, all pipelines on one core: in how many stages they run does not change what they compute.
func train(ctx context.Context, d *rig.Daemon, r run) (result, error) {
	pull, scale := r.Pull, r.RateScale
	if pull == "" {
		pull, scale = "predicted", "auto" // with one pipeline nothing is averaged, and auto is 1
	}
	start := time.Now()
	status, err := d.Run(ctx, append([]string{
		"stages=1", "devices.cpu.count=1", "devices.cpu.threads=1", "schedule=afp", "micro_batches=1",
		"pipelines=" + strconv.Itoa(r.Pipelines), "averaging.pull=" + pull, "averaging.alpha=" + cmp.Or(r.Alpha, "0"), "averaging.lr_scale=" + scale,
		"averaging.horizon=" + cmp.Or(r.Horizon, "1"),
		// A job's steps and warm-up are batches of all pipelines together.
		"train.batch=" + strconv.Itoa(r.Batch), "train.steps=" + strconv.Itoa(r.Steps*r.Pipelines),
		"optimizer.warmup=" + strconv.Itoa(warmup*r.Pipelines), "train.max_time=0s", "train.eval_every=0",
		"train.eval_samples=" + strconv.Itoa(heldOut), "optimizer.lr=" + r.Rate, "seed=" + strconv.Itoa(r.Seed),
		"center.state=center", "center.commit_every=" + strconv.Itoa(r.Steps),
	}, model...)...)
	switch {
	case err != nil:
		return result{}, fmt.Errorf("%s: %w", r, err)
	case status.EvalLoss == nil || status.InitialLoss == nil:
		return result{}, fmt.Errorf("%s: the job is done and its status has no loss", r)
	case status.SamplesSeen != uint64(r.samples()):
		return result{}, fmt.Errorf("%s: trained on %d samples, expected %d", r, status.SamplesSeen, r.samples())
	}
	return result{
		run: r, Loss: *status.EvalLoss, Untrained: *status.InitialLoss, Averaging: status.Averaging, Seconds: time.Since(start).Seconds(),
	}, nil
}
