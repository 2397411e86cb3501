// Scaling measures what a second device buys: the tokens a second of a job in two stages with two parallel pipelines on two
// one-core devices, over those of the same model on one such device. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// side is one of the two jobs that are compared: the overrides that make it.
type side struct {
	name string
	set  []string
}

var (
	one = side{"one device", []string{"stages=1", "pipelines=1", "devices.cpu.count=1", "devices.cpu.threads=1"}}
	two = side{"two devices", []string{"stages=2", "pipelines=2", "devices.cpu.count=2", "devices.cpu.threads=1"}}
)

func main() {
	rounds := flag.Int("rounds", 4, "runs of each side, in turn")
	tokens := flag.Int("tokens", 200_000, "tokens that a run trains on")
	rig.Main("scaling", func(ctx context.Context, d *rig.Daemon) ([]report.Figure, error) {
		return measure(ctx, d, *rounds, *tokens)
	})
}

// measure runs the two sides in turn, so that a machine that slows down slows both, and reports the median of the ratios of
// neighbouring runs.
func measure(ctx context.Context, d *rig.Daemon, rounds, tokens int) ([]report.Figure, error) {
	var ratios, singles, busy, losses []float64
	var last api.JobStatus
	for range rounds {
		alone, err := run(ctx, d, tokens, one)
		if err != nil {
			return nil, err
		}
		both, err := run(ctx, d, tokens, two)
		if err != nil {
			return nil, err
		}
		ratios = append(ratios, both.TokensPerS/alone.TokensPerS)
		singles = append(singles, alone.TokensPerS)
		if alone.EvalLoss != nil && both.EvalLoss != nil {
			losses = []float64{*alone.EvalLoss, *both.EvalLoss}
		}
		for _, s := range both.StageStatus {
			busy = append(busy, s.Busy+s.Optimizer+s.Average)
		}
		last = both
	}
	conditions := map[string]any{
		"job": d.File, "parameters": last.Parameters, "micro_batches": last.MicroBatches, "schedule": last.Schedule,
		"averaging": last.Averaging, "device": last.Device, "cores": runtime.NumCPU(), "ratios": ratios,
		"one_device_tokens_per_s": report.Median(singles), "held_out_loss_of_one_and_two": losses,
	}
	return []report.Figure{
		{
			Metric: "tokens/s of 2 one-core devices (K=2, N=2) over 1", Value: report.Median(ratios), Unit: "x",
			Bar: 1.7, Aim: 1.9, Conditions: conditions,
		},
		{
			Metric: "device busy time (compute, optimizer, averaging) at K=2, N=2", Value: report.Median(busy), Unit: "of 1",
			Bar: 0.95, Aim: 0.98, Conditions: conditions,
		},
	}, nil
}

// run trains one side on the number of tokens, without evaluations on the way.
func run(ctx context.Context, d *rig.Daemon, tokens int, s side) (api.JobStatus, error) {
	batch, sequence := 16, 128
	steps := max(8, tokens/(batch*sequence))
	set := append(slices.Clone(s.set), "model.config.n_layer=6", "model.config.n_embd=192", "model.config.n_head=6", fmt.Sprintf("train.steps=%d", steps), fmt.Sprintf("train.batch=%d", batch),
		fmt.Sprintf("data.sequence=%d", sequence), "micro_batches=4", "optimizer.warmup=0", "train.max_time=0s", "train.eval_every=0",
		"train.eval_samples=16", "center.commit_every=100000")
	status, err := d.Run(ctx, set...)
	if err != nil {
		return status, fmt.Errorf("%s: %w", s.name, err)
	}
	fmt.Fprintf(os.Stderr, "%s: %.0f tokens/s\n", s.name, status.TokensPerS)
	return status, nil
}
