// Scaling measures what a second device buys: the tokens a second of a job in two stages with two parallel pipelines on two
// one-core devices, over those of the same model on one such device. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

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

// options are the program's flags.
type options struct {
	program, file, goroot string
	rounds, tokens        int
}

func main() {
	var o options
	flag.StringVar(&o.program, "avgpiped", "bin/avgpiped", "the daemon")
	flag.StringVar(&o.file, "job", "examples/go-source.yaml", "the job whose model is trained")
	flag.StringVar(&o.goroot, "goroot", "", "what ${GOROOT} in the job file stands for: $(go env GOROOT)")
	flag.IntVar(&o.rounds, "rounds", 4, "runs of each side, in turn")
	flag.IntVar(&o.tokens, "tokens", 200_000, "tokens that a run trains on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "scaling:", err)
		os.Exit(1)
	}
}

// measure runs the two sides in turn, so that a machine that slows down slows both, and reports the median of the ratios of
// neighbouring runs.
func measure(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "avgpipe-scaling-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	daemon, err := rig.Start(ctx, o.program, dir, map[string]string{"GOROOT": o.goroot})
	if err != nil {
		return err
	}
	defer func() {
		if stopped := daemon.Stop(); err == nil {
			err = stopped
		}
	}()
	var ratios, singles, busy []float64
	var last api.JobStatus
	for range o.rounds {
		alone, err := run(ctx, daemon, o, one)
		if err != nil {
			return err
		}
		both, err := run(ctx, daemon, o, two)
		if err != nil {
			return err
		}
		ratios = append(ratios, both.TokensPerS/alone.TokensPerS)
		singles = append(singles, alone.TokensPerS)
		for _, s := range both.StageStatus {
			busy = append(busy, s.Busy+s.Optimizer+s.Average)
		}
		last = both
	}
	conditions := map[string]any{
		"job": o.file, "parameters": last.Parameters, "micro_batches": last.MicroBatches, "schedule": last.Schedule,
		"averaging": last.Averaging, "device": last.Device, "cores": runtime.NumCPU(), "ratios": ratios,
		"one_device_tokens_per_s": median(singles),
	}
	return report.Report(os.Stdout, os.Stderr,
		report.Figure{
			Bench: "scaling", Metric: "tokens/s of 2 one-core devices (K=2, N=2) over 1", Value: median(ratios), Unit: "x",
			Bar: 1.7, Aim: 1.9, Conditions: conditions,
		},
		report.Figure{
			Bench: "scaling", Metric: "device busy time (compute, optimizer, averaging) at K=2, N=2", Value: median(busy), Unit: "of 1",
			Bar: 0.95, Aim: 0.98, Conditions: conditions,
		},
	)
}

// run trains one side on the number of tokens, without evaluations on the way.
func run(ctx context.Context, d *rig.Daemon, o options, s side) (api.JobStatus, error) {
	pipelines := 1
	if s.name == two.name {
		pipelines = 2
	}
	batch, sequence := 16, 128
	steps := max(4, o.tokens/(pipelines*batch*sequence))
	set := append(slices.Clone(s.set), fmt.Sprintf("train.steps=%d", steps), fmt.Sprintf("train.batch=%d", batch),
		fmt.Sprintf("data.sequence=%d", sequence), "micro_batches=4", "optimizer.warmup=0", "train.max_time=0s", "train.eval_every=0",
		"train.eval_samples=16", "center.commit_every=100000")
	status, err := d.Run(ctx, o.file, set, nil)
	if err != nil {
		return status, fmt.Errorf("%s: %w", s.name, err)
	}
	fmt.Fprintf(os.Stderr, "%s: %.0f tokens/s\n", s.name, status.TokensPerS)
	return status, nil
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	n := len(v)
	if n == 0 {
		return 0
	}
	return (v[(n-1)/2] + v[n/2]) / 2
}
