// Averaging measures what elastic averaging costs in quality: the loss on held-out data after two parallel pipelines (K=2,
// N=2, afp) have trained on some samples, over that of plain training (K=1, N=1) on as many. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// options are the program's flags.
type options struct {
	rig.Options
	samples, batch int
}

func main() {
	samples := flag.Int("samples", 8192, "samples that each side trains on")
	batch := flag.Int("batch", 16, "samples in a step of all pipelines together")
	rig.Main("averaging", func(ctx context.Context, daemon *rig.Daemon, o rig.Options) error {
		return measure(ctx, daemon, options{Options: o, samples: *samples, batch: *batch})
	})
}

// measure trains plainly and with each pull, on the same samples in the same number of steps.
func measure(ctx context.Context, daemon *rig.Daemon, o options) error {
	plain, err := train(ctx, daemon, o, 1, "old")
	if err != nil {
		return err
	}
	var figures []report.Figure
	for _, pull := range []string{"old", "new", "elastic"} {
		averaged, err := train(ctx, daemon, o, 2, pull)
		if err != nil {
			return err
		}
		figures = append(figures, report.Figure{
			Bench: "averaging", Metric: "held-out loss, K=2 N=2 afp " + averaged.Averaging + " over K=1 N=1, same samples",
			Value: *averaged.EvalLoss / *plain.EvalLoss, Unit: "x", Bar: 1.05, Aim: 1.02, AtMost: true,
			Conditions: map[string]any{
				"job": o.File, "samples": o.samples, "samples_per_step": o.batch, "steps": plain.Steps, "loss_plain": *plain.EvalLoss,
				"loss_averaged": *averaged.EvalLoss, "loss_untrained": *plain.InitialLoss, "averaging": averaged.Averaging,
				"device": plain.Device,
			},
		})
	}
	return report.Report(os.Stdout, os.Stderr, figures...)
}

// train runs one job to its end, with the default alpha. With N pipelines each takes an N-th of a step's samples.
func train(ctx context.Context, d *rig.Daemon, o options, pipelines int, pull string) (api.JobStatus, error) {
	status, err := d.Run(ctx, o.File, []string{
		fmt.Sprintf("stages=%d", pipelines), fmt.Sprintf("pipelines=%d", pipelines), fmt.Sprintf("devices.cpu.count=%d", pipelines),
		"devices.cpu.threads=1", "schedule=afp", "averaging.pull=" + pull, "averaging.alpha=0", fmt.Sprintf("train.batch=%d", o.batch/pipelines),
		"micro_batches=2", fmt.Sprintf("train.steps=%d", o.samples/o.batch*pipelines), fmt.Sprintf("optimizer.warmup=%d", 50*pipelines), "train.max_time=0s", "train.eval_every=0",
		"train.eval_samples=256",
	}, nil)
	if err != nil {
		return status, fmt.Errorf("%d pipelines, pull %s: %w", pipelines, pull, err)
	}
	if status.EvalLoss == nil || status.InitialLoss == nil {
		return status, fmt.Errorf("%d pipelines, pull %s: the job is done and its status has no loss", pipelines, pull)
	}
	if trained := status.SamplesSeen; trained != uint64(o.samples/o.batch*o.batch) {
		return status, fmt.Errorf("%d pipelines, pull %s: trained on %d samples, expected %d", pipelines, pull, trained, o.samples)
	}
	fmt.Fprintf(os.Stderr, "%d pipelines, pull %s: loss %.4f -> %.4f on %d samples\n",
		pipelines, pull, *status.InitialLoss, *status.EvalLoss, status.SamplesSeen)
	return status, nil
}
