package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
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

// results is what has been trained so far.
type results struct {
	mu   sync.Mutex
	path string // empty: they are not kept
	all  map[run]result
}

// open reads a results file; one that does not exist has none.
func open(path string) (*results, error) {
	r := &results{path: path, all: map[run]result{}}
	if path == "" {
		return r, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var one result
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("results %s, line %d: %w", path, n, err)
		}
		r.all[one.run] = one
	}
	return r, lines.Err()
}

func (r *results) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

func (r *results) has(one run) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.all[one]
	return ok
}

// add keeps a result, in the file too.
func (r *results) add(one result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[one.run] = one
	if r.path == "" {
		return nil
	}
	line, err := json.Marshal(one)
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	f, err := os.OpenFile(r.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	_, err = f.Write(append(line, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}

// trainAll trains what is missing, some jobs at a time, and says how far it is.
func trainAll(ctx context.Context, d *rig.Daemon, o options, losses *results) error {
	var missing []run
	total, done := 0, 0 // samples
	for _, r := range matrix(o) {
		if !losses.has(r) {
			missing = append(missing, r)
			total += r.samples()
		}
	}
	fmt.Fprintf(os.Stderr, "%d runs of %.1f million samples; %d runs are there\n", len(missing), float64(total)/1e6, losses.len())
	start := time.Now()
	var mu sync.Mutex
	finished := func(r result) {
		mu.Lock()
		defer mu.Unlock()
		done += r.samples()
		left := time.Duration(float64(time.Since(start)) * float64(total-done) / float64(done))
		fmt.Fprintf(os.Stderr, "%s: loss %.4f in %.0f s; %d%%, %s left\n",
			r.run, r.Loss, r.Seconds, 100*done/total, left.Round(time.Minute))
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.jobs)
	for _, r := range missing {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			one, err := train(ctx, d, o, r)
			if err != nil {
				return err
			}
			if err := losses.add(one); err != nil {
				return err
			}
			finished(one)
			return nil
		})
	}
	return g.Wait()
}

// train runs one job to its end, all pipelines on one core: in how many stages they run does not change what they compute.
func train(ctx context.Context, d *rig.Daemon, o options, r run) (result, error) {
	pull, scale := r.Pull, r.RateScale
	if pull == "" {
		pull, scale = "predicted", "auto" // with one pipeline nothing is averaged, and auto is 1
	}
	start := time.Now()
	status, err := d.Run(ctx, o.File, append([]string{
		"stages=1", "devices.cpu.count=1", "devices.cpu.threads=1", "schedule=afp", "micro_batches=1",
		"pipelines=" + strconv.Itoa(r.Pipelines), "averaging.pull=" + pull, "averaging.alpha=" + cmp.Or(r.Alpha, "0"), "averaging.lr_scale=" + scale,
		// A job's steps and warm-up are batches of all pipelines together.
		"train.batch=" + strconv.Itoa(r.Batch), "train.steps=" + strconv.Itoa(r.Steps*r.Pipelines),
		"optimizer.warmup=" + strconv.Itoa(warmup*r.Pipelines), "train.max_time=0s", "train.eval_every=0",
		"train.eval_samples=" + strconv.Itoa(heldOut), "optimizer.lr=" + r.Rate, "seed=" + strconv.Itoa(r.Seed),
		"center.state=center", "center.commit_every=" + strconv.Itoa(r.Steps),
	}, model...), nil)
	if err != nil {
		return result{}, fmt.Errorf("%s: %w", r, err)
	}
	if status.EvalLoss == nil || status.InitialLoss == nil {
		return result{}, fmt.Errorf("%s: the job is done and its status has no loss", r)
	}
	if status.SamplesSeen != uint64(r.samples()) {
		return result{}, fmt.Errorf("%s: trained on %d samples, expected %d", r, status.SamplesSeen, r.samples())
	}
	return result{
		run: r, Loss: *status.EvalLoss, Untrained: *status.InitialLoss, Averaging: status.Averaging, Seconds: time.Since(start).Seconds(),
	}, nil
}
