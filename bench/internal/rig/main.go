package rig

import (
	"context"
	"errors"
	"flag"
	"os"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// Options are the flags that every benchmark through the daemon has.
type Options struct {
	Program string // the daemon
	File    string // the job file
	GoRoot  string // what ${GOROOT} in it stands for
}

// Main is the main function of such a benchmark: report.Main with a daemon of its own.
func Main(name string, measure func(context.Context, *Daemon, Options) ([]report.Figure, error)) {
	var o Options
	flag.StringVar(&o.Program, "avgpiped", "bin/avgpiped", "the daemon")
	flag.StringVar(&o.File, "job", "examples/go-source.yaml", "the job that is run, with overrides")
	flag.StringVar(&o.GoRoot, "goroot", "", "what ${GOROOT} in the job file stands for: $(go env GOROOT)")
	report.Main(name, func(ctx context.Context) (figures []report.Figure, err error) {
		dir, err := os.MkdirTemp("", "avgpipe-bench-")
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		daemon, err := Start(ctx, o.Program, dir, map[string]string{"GOROOT": o.GoRoot})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, daemon.Stop()) }()
		return measure(ctx, daemon, o)
	})
}
