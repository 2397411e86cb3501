package main

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// halt ends the daemon and all workers at once and keeps them away until release.
func (w *testbed) halt(ctx context.Context) error {
	if err := w.daemon.hold(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	return poll(ctx, stopBound, "the end of all processes", func() bool {
		left := w.processes(asAny)
		_ = signalAll(left, syscall.SIGKILL)
		return len(left) == 0
	})
}

func killWorker(_ context.Context, w *testbed) (func() error, error) {
	pid := pick(w, w.processes(asWorker))
	if pid == 0 {
		return nil, nil
	}
	return nil, signalAll([]int{pid}, syscall.SIGKILL)
}

func killWorkers(ctx context.Context, w *testbed) (func() error, error) {
	for range 3 {
		if err := signalAll(w.processes(asWorker), syscall.SIGKILL); err != nil {
			return nil, err
		}
		// The next workers may not be there yet; that is as random as the rest.
		_ = poll(ctx, time.Duration(w.random.Int64N(int64(300*time.Millisecond))), "nothing", func() bool { return false })
	}
	return nil, nil
}

func killDaemon(ctx context.Context, w *testbed) (func() error, error) {
	return nil, w.daemon.end(ctx, syscall.SIGKILL)
}

func crashDaemon(ctx context.Context, w *testbed) (func() error, error) {
	return nil, w.daemon.end(ctx, syscall.SIGABRT)
}

// stopDaemon expects that a daemon which answers ends in order.
func stopDaemon(ctx context.Context, w *testbed) (func() error, error) {
	defer w.daemon.release()
	if err := w.answers(ctx); err != nil {
		return nil, err
	}
	if err := w.daemon.hold(ctx, syscall.SIGTERM); err != nil {
		return nil, err
	}
	if end := w.daemon.lastEnd(); end != inOrder {
		return nil, fmt.Errorf("the daemon ended on SIGTERM with %s", end)
	}
	if left := w.processes(asWorker); len(left) > 0 {
		return nil, fmt.Errorf("workers %v outlive a daemon that ended in order", left)
	}
	return nil, nil
}

func killBoth(ctx context.Context, w *testbed) (func() error, error) {
	defer w.daemon.release()
	return nil, w.halt(ctx)
}

// tuning waits for a tuning, for a short time: it may be over.
func (w *testbed) tuning(ctx context.Context) (pids []int) {
	_ = poll(ctx, 2*time.Second, "a tuning", func() bool {
		pids = w.processes(asTuning)
		return len(pids) > 0
	})
	return pids
}

func killTuning(ctx context.Context, w *testbed) (func() error, error) {
	return nil, signalAll(w.tuning(ctx), syscall.SIGKILL)
}

func killTuningDaemon(ctx context.Context, w *testbed) (func() error, error) {
	w.tuning(ctx)
	return nil, w.daemon.end(ctx, syscall.SIGKILL)
}
