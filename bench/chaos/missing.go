package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/avgpipe/avgpipe/internal/api"
)

// lateBytes is the size of what lies where a file system is not mounted yet.
const lateBytes = 4 << 20

// late mounts an empty directory over one while nothing runs, as if its file system were not mounted yet.
func late(ctx context.Context, w *testbed, path string) (func() error, error) {
	defer w.daemon.release()
	if err := w.halt(ctx); err != nil {
		return nil, err
	}
	return unmount(path), mountSmall(path, lateBytes)
}

func lateJobs(ctx context.Context, w *testbed) (func() error, error) {
	return late(ctx, w, filepath.Join(w.base, "jobs"))
}

// lateRaft expects that no daemon begins anew without its log.
func lateRaft(ctx context.Context, w *testbed) (func() error, error) {
	undo, err := late(ctx, w, filepath.Join(w.base, "raft"))
	if err != nil {
		return undo, err
	}
	return func() error {
		_, answer := w.client.Version(ctx)
		if err := undo(); err != nil {
			return err
		}
		if answer == nil {
			return fmt.Errorf("a daemon answers that has no Raft log")
		}
		return nil
	}, nil
}

func lateData(_ context.Context, w *testbed) (func() error, error) {
	data := filepath.Join(w.dir, "data")
	if err := mountSmall(data, lateBytes); err != nil {
		return nil, err
	}
	return unmount(data), signalAll(w.processes(asWorker), syscall.SIGKILL)
}

func dataAway(_ context.Context, w *testbed) (func() error, error) {
	path := filepath.Join(w.dir, "data", corpus)
	if err := os.Rename(path, path+".away"); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // another fault was faster
	} else if err != nil {
		return nil, err
	}
	return func() error { return os.Rename(path+".away", path) }, signalAll(w.processes(asWorker), syscall.SIGKILL)
}

// committed draws a job that has committed a round, and will not end for a while; nil without one.
func (w *testbed) committed() *trialJob {
	var all []*trialJob
	for _, j := range w.jobs {
		if s := j.status(); s.CommittedRound > 0 && s.CommittedRound < steps/2 && s.State != api.Done {
			all = append(all, j)
		}
	}
	return pick(w, all)
}

// away moves a directory of a job away while nothing runs. Where the daemon has made a new one when it comes back, it is empty, but
// for what may be lost.
func away(ctx context.Context, w *testbed, path func(*trialJob) string, lost ...string) (func() error, error) {
	defer w.daemon.release()
	if err := w.halt(ctx); err != nil {
		return nil, err
	}
	j := w.committed()
	if j == nil {
		return nil, nil
	}
	from, to := path(j), filepath.Join(w.base, "away")
	if _, err := os.Lstat(to); err == nil {
		return nil, nil // something is away already
	}
	if err := os.Rename(from, to); err != nil {
		return nil, err
	}
	return func() error {
		for _, name := range lost {
			_ = os.Remove(filepath.Join(from, name)) // the next line sees it
		}
		return os.Rename(to, from)
	}, nil
}

func shardsAway(ctx context.Context, w *testbed) (func() error, error) {
	return away(ctx, w, func(j *trialJob) string { return filepath.Join(w.jobDir(j), "shards") })
}

func jobAway(ctx context.Context, w *testbed) (func() error, error) {
	return away(ctx, w, w.jobDir, "worker.log", "shards")
}
