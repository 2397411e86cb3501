package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// The comparison on two cores: every side trains the first shape in bf16 with batches of 16 samples.
const (
	devicesBatch = 16
	scanSteps    = 3 // of a run that only looks for the best number of micro-batches
)

// microBatches are the numbers that each side may choose from.
var microBatches = []int{4, 8, 16}

// contestant is a way to train on two cores; rate runs it and returns tokens a second.
type contestant struct {
	name string
	rate func(ctx context.Context, micro, steps int) (float64, error)
	best int // of microBatches, once found
}

// compareDevices runs two one-core devices (K = 2 stages, N = 2 pipelines) and the peer's three ways on the same two cores,
// alternately, each with the number of micro-batches that is best for it.
func compareDevices(ctx context.Context, o options) (figures []report.Figure, err error) {
	dir, err := os.MkdirTemp("", "avgpipe-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	daemon, err := rig.Start(ctx, o.program, dir, map[string]string{"GOROOT": o.goRoot})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, daemon.Stop()) }()

	s := shapes[0]
	s.Precision, s.Batch = "bf16", devicesBatch
	own := &contestant{name: "2 devices", rate: func(ctx context.Context, micro, steps int) (float64, error) {
		return trainJob(ctx, daemon, o, s, micro, steps)
	}}
	all := []*contestant{own}
	for _, mode := range []string{"gpipe", "1f1b", "ddp"} {
		all = append(all, &contestant{name: mode, rate: func(ctx context.Context, micro, steps int) (float64, error) {
			s := s
			s.Steps = steps
			out, _, err := runPeer(ctx, o, s, mode, "--world", "2", "--micro", strconv.Itoa(micro))
			return out.TokensPerS, err
		}})
	}
	for _, c := range all {
		if err := c.findBest(ctx); err != nil {
			return nil, err
		}
	}
	return contest(ctx, o, s, all)
}

// findBest tries each number of micro-batches. Data parallelism has none.
func (c *contestant) findBest(ctx context.Context) error {
	if c.name == "ddp" {
		c.best = 1
		return nil
	}
	highest := 0.0
	for _, micro := range microBatches {
		rate, err := c.rate(ctx, micro, scanSteps)
		if err != nil {
			return fmt.Errorf("%s, %d micro-batches: %w", c.name, micro, err)
		}
		fmt.Fprintf(os.Stderr, "%s, %d micro-batches: %.0f tokens/s\n", c.name, micro, rate)
		if rate > highest {
			c.best, highest = micro, rate
		}
	}
	return nil
}

// contest runs all in turn, as often as o says; all[0] is ours.
func contest(ctx context.Context, o options, s shape, all []*contestant) ([]report.Figure, error) {
	var overPipeline, overData []float64
	micro := map[string]int{}
	for range o.rounds {
		rates := map[string]float64{}
		for _, c := range all {
			rate, err := c.rate(ctx, c.best, s.Steps)
			if err != nil {
				return nil, fmt.Errorf("%s, %d micro-batches: %w", c.name, c.best, err)
			}
			rates[c.name], micro[c.name] = rate, c.best
			fmt.Fprintf(os.Stderr, "%s, %d micro-batches: %.0f tokens/s\n", c.name, c.best, rate)
		}
		own := rates[all[0].name]
		overPipeline = append(overPipeline, own/max(rates["gpipe"], rates["1f1b"]))
		overData = append(overData, own/rates["ddp"])
	}
	conditions := map[string]any{
		"shape": s, "stages": 2, "pipelines": 2, "micro_batches": micro, "over_pipeline": overPipeline, "over_ddp": overData,
	}
	return []report.Figure{
		{
			Bench: "engine", Metric: "tokens/s of two one-core devices (K=2, N=2) over the peer's better pipeline, bf16",
			Value: report.Median(overPipeline), Unit: "x", Bar: 1.5, Aim: 1.7, Conditions: conditions,
		},
		{
			Bench: "engine", Metric: "tokens/s of two one-core devices (K=2, N=2) over the peer's data parallelism, bf16",
			Value: report.Median(overData), Unit: "x", Bar: 1.3, Aim: 1.5, Conditions: conditions,
		},
	}, nil
}

// trainJob trains the shape through the daemon, as a user's job: each of two pipelines takes a batch a step.
func trainJob(ctx context.Context, d *rig.Daemon, o options, s shape, micro, steps int) (float64, error) {
	status, err := d.Run(ctx, o.job, []string{
		fmt.Sprintf("model.config.n_layer=%d", s.Layers), fmt.Sprintf("model.config.n_embd=%d", s.Width), fmt.Sprintf("model.config.n_head=%d", s.Heads),
		fmt.Sprintf("model.config.n_positions=%d", s.Sequence), fmt.Sprintf("model.config.vocab_size=%d", s.Vocabulary),
		"model.config.tie_word_embeddings=false", "precision=" + s.Precision,
		"stages=2", "pipelines=2", "devices.cpu.count=2", "devices.cpu.threads=1", "schedule=afp", fmt.Sprintf("micro_batches=%d", micro),
		fmt.Sprintf("train.batch=%d", s.Batch), fmt.Sprintf("train.steps=%d", warmup+steps), "train.max_time=0s", "train.eval_every=0", "train.eval_samples=16",
		"optimizer.warmup=0", "optimizer.schedule=constant", "optimizer.lr=1e-3", "center.commit_every=100000",
	}, nil)
	if err != nil {
		return 0, err
	}
	return status.TokensPerS, nil
}
