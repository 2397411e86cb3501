package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/logging"
)

// ready waits until all daemons answer, and notes what they have open before there is a job.
func (w *testbed) ready(ctx context.Context) error {
	if err := w.answers(ctx); err != nil {
		return err
	}
	return w.noteUsage(ctx)
}

// finish checks what the jobs have ended with and what daemons have left, ends the daemons, and keeps the directory of a trial that failed. err is what
// went wrong before; what is checked then is only that everything ends.
func (w *testbed) finish(ctx context.Context, keep string, references map[string]*outcome, err error) error {
	if err == nil {
		err = w.checkResults(ctx, references)
	}
	if err == nil && len(w.hosts) > 1 {
		err = w.awaitWorkers(ctx)
	}
	if err == nil {
		err = w.awaitInterpreters(ctx)
	}
	if err == nil {
		err = w.checkLeaks(ctx)
	}
	for _, j := range w.jobs {
		err = errors.Join(append(j.problems, err)...)
	}
	if err = errors.Join(err, w.end(ctx)); err == nil {
		err = w.checkLogs()
	}
	if err != nil {
		err = errors.Join(err, w.save(keep, err))
	}
	return err
}

// awaitWorkers waits until the workers of jobs that are done have ended: a daemon that is told to end leaves those that the one that leads has not told yet.
func (w *testbed) awaitWorkers(ctx context.Context) error {
	return rig.Poll(ctx, drainBound, "the end of all workers", func() bool { return len(w.processes(asWorker)) == 0 })
}

// checkResults compares how the jobs ended with undisturbed runs.
func (w *testbed) checkResults(ctx context.Context, references map[string]*outcome) error {
	if err := w.answers(ctx); err != nil {
		return err
	}
	for _, j := range w.jobs {
		got, err := w.outcome(ctx, j)
		if err != nil {
			return err
		}
		want, known := references[j.kind.name]
		if !known {
			references[j.kind.name] = got
			want = got
		}
		if err := w.check(j, got, want); err != nil {
			return err
		}
	}
	for _, path := range w.leftovers {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s is still there, which a killed write left", path)
		}
	}
	return nil
}

// end ends the daemons in order and checks that nothing is left.
func (w *testbed) end(ctx context.Context) (err error) {
	for _, h := range w.hosts {
		if h.daemon != nil {
			err = errors.Join(err, h.end(ctx))
		}
	}
	// A worker whose job is over may still be ending.
	_ = rig.Poll(ctx, leftBound, "the end of all processes", func() bool { return len(w.processes("")) == 0 })
	if left := w.processes(""); len(left) > 0 {
		for _, pid := range left {
			err = errors.Join(err, fmt.Errorf("process %d is left: %s", pid, commandLine(pid)))
		}
		err = errors.Join(err, signalAll(left, syscall.SIGKILL))
	}
	return err
}

// commandLine says what a process is, and in which state.
func commandLine(pid int) string {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return err.Error()
	}
	stat, err := p.Stat()
	line, failed := p.CmdLine()
	if err = errors.Join(err, failed); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s, state %s, child of %d", strings.Join(line, " "), stat.State, stat.PPID)
}

// checkLogs looks for crashes that nobody ordered and, in calm trials, for errors.
func (w *testbed) checkLogs() error {
	for _, h := range w.hosts {
		text := "\n" + h.logText()
		for _, sign := range []string{"panic: ", "fatal error: ", "DATA RACE"} {
			if _, after, found := strings.Cut(text, "\n"+sign); found {
				line, _, _ := strings.Cut(after, "\n")
				return fmt.Errorf("the daemon%s crashed: %s%s", h.of(), sign, line)
			}
		}
		for line := range strings.Lines(text) {
			if e, is := logging.Parse([]byte(strings.TrimSpace(line))); w.calm && is && e.Level >= zapcore.ErrorLevel {
				return fmt.Errorf("the daemon%s logs an error, and nobody has to do anything: %s", h.of(), e.Text)
			}
		}
	}
	return nil
}
