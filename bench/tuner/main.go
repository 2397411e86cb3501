// Tuner measures how well predictions of batch time and memory hold, how good the configuration is that tuning chooses, and what
// tuning costs, on the CPU devices of this host. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// options are the flags.
type options struct {
	parts   string
	models  []string
	batches int // that each configuration is watched for
	rounds  int // of profile and runs that predictions are held to, and of the play-off
}

func main() {
	names := flag.String("parts", "accuracy,choice,busy", "what to measure")
	models := flag.String("models", "", "models whose predictions are held to runs; none: those of the part")
	batches := flag.Int("batches", 16, "batches that each configuration is watched for, in two runs")
	rounds := flag.Int("rounds", 5, "how often profile and runs are repeated")
	assignment := flag.String("worker", "", "be the worker of this assignment, whose memory is looked at")
	report.Main("tuner", func(ctx context.Context) ([]report.Figure, error) {
		if *assignment != "" {
			return nil, runWorker(ctx, *assignment)
		}
		return run(ctx, options{parts: *names, models: strings.FieldsFunc(*models, func(r rune) bool { return r == ',' }), batches: *batches, rounds: *rounds})
	})
}

func run(ctx context.Context, o options) (all []report.Figure, err error) {
	dir, err := os.MkdirTemp("", "avgpipe-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	part := func(name string, measure func(context.Context, options, string) ([]report.Figure, error)) report.Part {
		return report.Part{Name: name, Measure: func(ctx context.Context) (figures []report.Figure, err error) {
			taken, err := others(func() (err error) {
				figures, err = measure(ctx, o, dir)
				return err
			})
			for i := range figures {
				figures[i].Conditions["processor_time_of_others"] = taken
			}
			return figures, err
		}}
	}
	return report.Parts(ctx, o.parts, part("accuracy", accuracy), part("memory", memory), part("choice", choice), part("busy", busy))
}

// others runs f and says which part of the processor time that was taken meanwhile others took: figures of a host that is not
// quiet are worth little.
func others(f func() error) (float64, error) {
	all, own, err := busySeconds()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	allNow, ownNow, err := busySeconds()
	return max(0, 1-(ownNow-own)/max(allNow-all, 1e-9)), err
}

// busySeconds is the processor time that all processes of this host have taken, and that this one has.
func busySeconds() (all, own float64, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return 0, 0, err
	}
	var usage unix.Rusage
	err = unix.Getrusage(unix.RUSAGE_SELF, &usage)
	c := stat.CPUTotal
	return c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal, 1e-9 * float64(usage.Utime.Nano()+usage.Stime.Nano()), err
}
