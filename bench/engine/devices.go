package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// The comparison on two cores: every side trains the first shape in bf16 with batches of 16 samples.
const (
	devicesBatch = 16
	pipelines    = 2
)

// cuts are the numbers of micro-batches of such a batch that each side may choose from.
var cuts = []int{4, 8, 16}

// contestant is a way to train on two cores; rate runs it and returns tokens a second.
type contestant struct {
	name   string
	micros []int // numbers of micro-batches to choose from
	rate   func(ctx context.Context, micro int) (float64, error)
}

// own are the two ways to hold our pipelines against the peer: each with a batch like the peer's, so that the two take twice its
// samples a step, and with equal work, the same batch in halves.
var own = []struct {
	name    string
	divides int // the peer's batch, for each pipeline's
}{
	{"16 samples a pipeline", 1},
	{"16 samples in all", pipelines},
}

// compareDevices runs two one-core devices (K = 2 stages, N = 2 pipelines) and the peer's three ways on the same two cores,
// alternately, each with the number of micro-batches that is best for it at the time.
func compareDevices(ctx context.Context, daemon *rig.Daemon, o options) ([]report.Figure, error) {
	s := shapes[0]
	s.Precision, s.Batch = "bf16", devicesBatch
	var all []contestant
	for _, v := range own {
		s := s
		s.Batch, s.Steps = s.Batch/v.divides, s.Steps*v.divides // as many samples
		c := contestant{name: v.name, rate: func(ctx context.Context, micro int) (float64, error) { return trainJob(ctx, daemon, s, micro) }}
		for _, n := range cuts {
			c.micros = append(c.micros, n/v.divides)
		}
		all = append(all, c)
	}
	for _, mode := range []string{"gpipe", "1f1b", "ddp"} {
		c := contestant{name: mode, micros: cuts, rate: func(ctx context.Context, micro int) (float64, error) {
			out, _, err := runPeer(ctx, o, s, mode, "--world", strconv.Itoa(pipelines), "--micro", strconv.Itoa(micro))
			return out.TokensPerS, err
		}}
		if mode == "ddp" {
			c.micros = []int{1} // data parallelism has none
		}
		all = append(all, c)
	}
	return contest(ctx, o, s, all)
}

// contest runs all in turn, as often as o says, each with every number of micro-batches, of which the best counts, and holds each
// of our ways against the peer's.
func contest(ctx context.Context, o options, s shape, all []contestant) ([]report.Figure, error) {
	rates, micro := map[string][]float64{}, map[string][]int{}
	for range o.rounds {
		for _, c := range all {
			highest, best := 0.0, 0
			for _, m := range c.micros {
				rate, err := c.rate(ctx, m)
				if err != nil {
					return nil, fmt.Errorf("%s, %d micro-batches: %w", c.name, m, err)
				}
				fmt.Fprintf(os.Stderr, "%s, %d micro-batches: %.0f tokens/s\n", c.name, m, rate)
				if rate > highest {
					highest, best = rate, m
				}
			}
			rates[c.name], micro[c.name] = append(rates[c.name], highest), append(micro[c.name], best)
		}
	}
	var figures []report.Figure
	for _, v := range own {
		var overPipeline, overData []float64
		for i, rate := range rates[v.name] {
			overPipeline = append(overPipeline, rate/max(rates["gpipe"][i], rates["1f1b"][i]))
			overData = append(overData, rate/rates["ddp"][i])
		}
		conditions := map[string]any{
			"shape": s, "stages": 2, "pipelines": pipelines, "pipeline_batch": s.Batch / v.divides, "micro_batches": micro,
			"tokens_per_s": rates, "over_pipeline": overPipeline, "over_ddp": overData,
		}
		what := "tokens/s of two one-core devices (K=2, N=2, " + v.name + ") over the peer's "
		figures = append(figures,
			report.Figure{
				Metric: what + "better pipeline, bf16",
				Value:  report.Median(overPipeline), Unit: "x", Bar: 1.6, Aim: 1.9, Conditions: conditions,
			},
			report.Figure{
				Metric: what + "data parallelism, bf16",
				Value:  report.Median(overData), Unit: "x", Bar: 1.35, Aim: 1.6, Conditions: conditions,
			})
	}
	return figures, nil
}

// trainJob trains the shape through the daemon, as a user's job: each pipeline takes a batch of the shape's size a step.
func trainJob(ctx context.Context, d *rig.Daemon, s shape, micro int) (float64, error) {
	status, err := d.Run(ctx,
		fmt.Sprintf("model.config.n_layer=%d", s.Layers), fmt.Sprintf("model.config.n_embd=%d", s.Width), fmt.Sprintf("model.config.n_head=%d", s.Heads),
		fmt.Sprintf("model.config.n_positions=%d", s.Sequence), fmt.Sprintf("model.config.vocab_size=%d", s.Vocabulary),
		"model.config.tie_word_embeddings=false", "precision="+s.Precision,
		"stages=2", fmt.Sprintf("pipelines=%d", pipelines), "devices.cpu.count=2", "devices.cpu.threads=1", "schedule=afp", fmt.Sprintf("micro_batches=%d", micro),
		fmt.Sprintf("train.batch=%d", s.Batch), fmt.Sprintf("train.steps=%d", pipelines*(warmup+s.Steps)), "train.max_time=0s", "train.eval_every=0", "train.eval_samples=16",
		"optimizer.warmup=0", "optimizer.schedule=constant", "optimizer.lr=1e-3", "center.commit_every=100000")
	if err != nil {
		return 0, err
	}
	return status.TokensPerS, nil
}
