package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// The comparison on two cores: batches of so many samples, and steps.
const (
	pipelineBatch  = 16
	pipelineWarmup = 2
	pipelineSteps  = 6
)

// way is how a batch is trained on two cores; it gives tokens a second.
type way struct {
	name   string
	micros []int // numbers of micro-batches that it may choose from
	rate   func(ctx context.Context, micros int) (float64, error)
}

// peerRequest is what pipeline.py reads.
type peerRequest struct {
	shape
	Schedule string `json:"schedule"`
	Micros   int    `json:"micros"`
	Warmup   int    `json:"warmup"`
	Steps    int    `json:"steps"`
}

// pipelines runs two pipelines of two stages over two devices of a core each, and pipelines as they are written in PyTorch, of the same modules on the same cores, in turn,
// each with the number of micro-batches that is best for it at the time.
func (o options) pipelines(ctx context.Context) (figures []report.Figure, err error) {
	s := o.gpt(6, 384, 6, 128, pipelineBatch) // 10.8 million parameters
	o.daemon.File = filepath.Join(o.directory, "job.yaml")
	return o.daemon.With(ctx, func(ctx context.Context, d *rig.Daemon) ([]report.Figure, error) {
		ours := []way{
			{"two pipelines, 16 samples each", []int{4, 8}, func(ctx context.Context, micros int) (float64, error) { return job(ctx, d, pipelineBatch, micros) }},
			{"two pipelines, 8 samples each", []int{2, 4}, func(ctx context.Context, micros int) (float64, error) { return job(ctx, d, pipelineBatch/2, micros) }},
		}
		peers := []way{
			{"gpipe", []int{4, 8}, func(ctx context.Context, micros int) (float64, error) { return o.peer(ctx, s, "gpipe", micros) }},
			{"1f1b", []int{4, 8}, func(ctx context.Context, micros int) (float64, error) { return o.peer(ctx, s, "1f1b", micros) }},
		}
		rates := map[string][]float64{}
		for range o.rounds {
			for _, w := range append(ours, peers...) {
				best, err := w.best(ctx)
				if err != nil {
					return nil, err
				}
				rates[w.name] = append(rates[w.name], best)
			}
		}
		var figures []report.Figure
		for _, w := range ours {
			var ratios []float64
			for i, rate := range rates[w.name] {
				ratios = append(ratios, rate/max(rates["gpipe"][i], rates["1f1b"][i]))
			}
			figures = append(figures, report.Figure{
				Metric: "tokens/s of modules in Python on two devices of a core (" + w.name + ") over PyTorch's better pipeline of 16 samples",
				Value:  report.Median(ratios), Unit: "x", Bar: 1.3, Conditions: map[string]any{"shape": s, "tokens_per_s": rates, "ratios": ratios},
			})
		}
		return figures, nil
	})
}

// best is the rate with the best number of micro-batches.
func (w way) best(ctx context.Context) (best float64, err error) {
	for _, micros := range w.micros {
		rate, err := w.rate(ctx, micros)
		if err != nil {
			return 0, fmt.Errorf("%s, %d micro-batches: %w", w.name, micros, err)
		}
		fmt.Fprintf(os.Stderr, "%s, %d micro-batches: %.0f tokens/s\n", w.name, micros, rate)
		best = max(best, rate)
	}
	return best, nil
}

// job trains through the daemon, with so many samples in a pipeline's batch: as many in all as the peer.
func job(ctx context.Context, d *rig.Daemon, batch, micros int) (float64, error) {
	const pipelines = 2
	steps := (pipelineWarmup + pipelineSteps) * pipelineBatch / batch
	status, err := d.Run(ctx, fmt.Sprintf("train.batch=%d", batch), fmt.Sprintf("micro_batches=%d", micros), fmt.Sprintf("train.steps=%d", pipelines*steps))
	if err != nil {
		return 0, err
	}
	return status.TokensPerS, nil
}

// peer trains by pipeline.py.
func (o options) peer(ctx context.Context, s shape, schedule string, micros int) (float64, error) {
	text, err := json.Marshal(peerRequest{s, schedule, micros, pipelineWarmup, pipelineSteps})
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, o.interpreter, filepath.Join(o.directory, "pipeline.py"), string(text))
	cmd.Env, cmd.Stderr = environment(), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
}
