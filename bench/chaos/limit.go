package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// limit lowers a process's soft limit; undo raises it again. A process that has ended is no error.
func limit(pid, resource int, to uint64) (undo func() error, err error) {
	var before unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &before); err != nil {
		return nil, ignoreEnded(err)
	}
	lower := unix.Rlimit{Cur: min(to, before.Max), Max: before.Max}
	undo = func() error { return ignoreEnded(unix.Prlimit(pid, resource, &before, nil)) }
	return undo, ignoreEnded(unix.Prlimit(pid, resource, &lower, nil))
}

func ignoreEnded(err error) error {
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return fmt.Errorf("limit a process: %w", err)
}

// limitMemory makes the next request of a worker for memory fail. The worker that comes after it has no limit.
func limitMemory(_ context.Context, w *testbed) (func() error, error) {
	pid := pick(w, w.processes(asWorker))
	if pid == 0 {
		return nil, nil
	}
	_, err := limit(pid, unix.RLIMIT_AS, 1<<20)
	return nil, err
}

// limitFiles lets a process open no file more.
func limitFiles(pid int) (func() error, error) {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if pid == 0 || err != nil {
		return nil, nil //nolint:nilerr // it has ended
	}
	return limit(pid, unix.RLIMIT_NOFILE, uint64(len(open)))
}

func limitWorkerFiles(_ context.Context, w *testbed) (func() error, error) {
	return limitFiles(pick(w, w.processes(asWorker)))
}

// limitDaemonFiles spares a daemon that is just starting: the Go runtime itself needs a descriptor then.
func limitDaemonFiles(ctx context.Context, w *testbed) (func() error, error) {
	if !w.answered(ctx) {
		return nil, nil
	}
	return limitFiles(w.daemon.pid())
}
