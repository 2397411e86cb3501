// Package rig runs jobs through a daemon of its own for benchmarks: the real avgpiped with real workers, its state in a
// temporary directory that goes when the benchmark ends.
package rig

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/api"
)

// bound is how long the daemon may take to start, and to stop. How long jobs may take is the callers'.
const bound = 30 * time.Second

// Daemon is a running avgpiped.
type Daemon struct {
	*api.Client
	Options

	cmd *exec.Cmd
	dir string // its configuration, state and log
}

// Options are the flags that every benchmark through the daemon has.
type Options struct {
	Program string // the daemon
	File    string // the job file
	GoRoot  string // what ${GOROOT} in it stands for
}

// Flags defines the flags.
func Flags() *Options {
	var o Options
	flag.StringVar(&o.Program, "avgpiped", "bin/avgpiped", "the daemon")
	flag.StringVar(&o.File, "job", "examples/go-source.yaml", "the job that is run, with overrides")
	flag.StringVar(&o.GoRoot, "goroot", "", "what ${GOROOT} in the job file stands for: $(go env GOROOT)")
	return &o
}

// Main is the main function of such a benchmark: report.Main with a daemon.
func Main(name string, measure func(context.Context, *Daemon) ([]report.Figure, error)) {
	o := Flags()
	report.Main(name, func(ctx context.Context) ([]report.Figure, error) { return o.With(ctx, measure) })
}

// With measures with a daemon. It returns when that has ended.
func (o *Options) With(ctx context.Context, measure func(context.Context, *Daemon) ([]report.Figure, error)) (figures []report.Figure, err error) {
	d := &Daemon{Options: *o}
	if d.dir, err = os.MkdirTemp("", "avgpipe-bench-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	if err := d.start(ctx); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Program, err)
	}
	figures, err = measure(ctx, d)
	return figures, errors.Join(err, d.stop())
}

// start starts the program and returns when it answers.
func (d *Daemon) start(ctx context.Context) error {
	log, err := os.Create(filepath.Join(d.dir, "avgpiped.log"))
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the daemon has its own descriptor
	config, socket := filepath.Join(d.dir, "avgpiped.yaml"), filepath.Join(d.dir, "sock")
	state := filepath.Join(d.dir, "state")
	text := fmt.Appendf(nil, "state_dir: %s\nsocket: %s\n", state, socket)
	if err := errors.Join(os.Mkdir(state, 0o750), os.WriteFile(config, text, 0o600)); err != nil {
		return err
	}
	d.Client = api.NewClient(socket)
	d.cmd = exec.CommandContext(ctx, d.Program, "--config", config)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Cancel = func() error { return d.cmd.Process.Signal(syscall.SIGTERM) }
	d.cmd.WaitDelay = bound
	if err := d.cmd.Start(); err != nil {
		return err
	}
	err = Poll(ctx, bound, "an answer of the daemon", func() bool { _, err := d.Version(ctx); return err == nil })
	if err != nil {
		return errors.Join(err, d.stop())
	}
	return nil
}

// Poll waits until something holds.
func Poll(ctx context.Context, bound time.Duration, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for !holds() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %v", what, bound)
		}
	}
	return nil
}

// stop ends the daemon in order. One that ends with an error says in its log why.
func (d *Daemon) stop() error {
	d.Close()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the daemon: %w", err)
	}
	timer := time.AfterFunc(bound, func() { _ = d.cmd.Process.Kill() })
	defer timer.Stop()
	if err := d.cmd.Wait(); err != nil {
		log, _ := os.ReadFile(filepath.Join(d.dir, "avgpiped.log")) // without it, less is known
		return fmt.Errorf("the daemon ended: %w; the end of its log: %s", err, log[max(0, len(log)-2000):])
	}
	return nil
}

// Run submits the job file with overrides, waits until the job has ended, and returns its last status. A job that is not done is an
// error.
func (d *Daemon) Run(ctx context.Context, set ...string) (api.JobStatus, error) {
	id, err := d.SubmitFile(ctx, set...)
	if err != nil {
		return api.JobStatus{}, err
	}
	last, err := d.Watch(ctx, id, func(api.JobStatus) {})
	if err == nil && last.State != api.Done {
		err = fmt.Errorf("job %s is %s: %s", id, last.State, last.Reason)
	}
	return last, err
}

// SubmitFile submits the job file with overrides.
func (d *Daemon) SubmitFile(ctx context.Context, set ...string) (id string, err error) {
	request, err := d.request(set)
	if err != nil {
		return "", err
	}
	answer, err := d.Submit(ctx, request)
	if err != nil {
		return "", fmt.Errorf("submit %s %v: %w", d.File, set, err)
	}
	return answer.ID, nil
}

// DryRunFile says what the job file with overrides would be, and submits nothing.
func (d *Daemon) DryRunFile(ctx context.Context, set ...string) (api.DryRun, error) {
	request, err := d.request(set)
	if err != nil {
		return api.DryRun{}, err
	}
	answer, err := d.DryRun(ctx, request)
	if err != nil {
		return api.DryRun{}, fmt.Errorf("dry run of %s %v: %w", d.File, set, err)
	}
	return answer, nil
}

// request is the job file with overrides.
func (d *Daemon) request(set []string) (api.SubmitRequest, error) {
	source, err := os.ReadFile(d.File)
	if err != nil {
		return api.SubmitRequest{}, err
	}
	base, err := filepath.Abs(filepath.Dir(d.File))
	if err != nil {
		return api.SubmitRequest{}, err
	}
	return api.SubmitRequest{File: d.File, Source: string(source), Set: set, Base: base, Env: map[string]string{"GOROOT": d.GoRoot}}, nil
}

// Worker finds the process of the only running job.
func (d *Daemon) Worker() (int, error) { return WorkerIn(d.dir) }

// Processes returns the other running processes whose command lines, with a zero byte around each argument, hold all words.
func Processes(words ...string) (pids []int) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil
	}
	for _, p := range all {
		arguments, err := p.CmdLine()
		line := "\x00" + strings.Join(arguments, "\x00") + "\x00"
		lacks := func(word string) bool { return !strings.Contains(line, word) }
		if err != nil || p.PID == os.Getpid() || slices.ContainsFunc(words, lacks) {
			continue // it has ended meanwhile, or is another's
		}
		if stat, err := p.Stat(); err == nil && stat.State != "Z" && stat.State != "X" {
			pids = append(pids, p.PID)
		}
	}
	return pids
}
