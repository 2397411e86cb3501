package rig

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Options are the flags that every benchmark through the daemon has.
type Options struct {
	Program string // the daemon
	File    string // the job file
	GoRoot  string // what ${GOROOT} in it stands for
}

// Main is the main function of such a benchmark: it parses the flags, those that the caller has defined before included, runs
// measure with a daemon of its own, and exits with 0 when it could measure.
func Main(name string, measure func(context.Context, *Daemon, Options) error) {
	var o Options
	flag.StringVar(&o.Program, "avgpiped", "bin/avgpiped", "the daemon")
	flag.StringVar(&o.File, "job", "examples/go-source.yaml", "the job that is run, with overrides")
	flag.StringVar(&o.GoRoot, "goroot", "", "what ${GOROOT} in the job file stands for: $(go env GOROOT)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := with(ctx, o, measure)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// with runs measure between the start and the end of a daemon.
func with(ctx context.Context, o Options, measure func(context.Context, *Daemon, Options) error) (err error) {
	dir, err := os.MkdirTemp("", "avgpipe-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	daemon, err := Start(ctx, o.Program, dir, map[string]string{"GOROOT": o.GoRoot})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, daemon.Stop()) }()
	return measure(ctx, daemon, o)
}
