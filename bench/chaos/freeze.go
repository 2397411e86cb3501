package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// freeze stops processes; undo lets them go on.
func freeze(pids []int) (undo func() error, err error) {
	return func() error { return signalAll(pids, syscall.SIGCONT) }, signalAll(pids, syscall.SIGSTOP)
}

func freezeWorker(_ context.Context, w *testbed) (func() error, error) {
	pid := pick(w, w.processes(asWorker))
	if pid == 0 {
		return nil, nil
	}
	return freeze([]int{pid})
}

func freezeAll(_ context.Context, w *testbed) (func() error, error) {
	return freeze(w.processes(asAny))
}

// freezeDaemon expects that a daemon which was away itself spares its workers.
func freezeDaemon(ctx context.Context, w *testbed) (func() error, error) {
	pid := w.daemon.pid()
	if pid == 0 {
		return nil, nil
	}
	before := w.generations()
	undo, err := freeze([]int{pid})
	if err != nil {
		return undo, err
	}
	asleep := responseTimeout/2 + time.Duration(w.random.Int64N(int64(2*responseTimeout)))
	_ = poll(ctx, asleep, "nothing", func() bool { return false })
	if err := undo(); err != nil {
		return nil, err
	}
	_ = poll(ctx, responseTimeout, "nothing", func() bool { return false })
	for id, after := range w.generations() {
		if was, known := before[id]; known && was != after {
			return nil, fmt.Errorf("job %s went from generation %d to %d when its daemon was frozen for %v", id, was, after, asleep)
		}
	}
	return nil, nil
}

// generations are those of the jobs that train.
func (w *testbed) generations() map[string]uint64 {
	all := map[string]uint64{}
	for _, j := range w.jobs {
		if s := j.status(); s.State == api.Running {
			all[j.id] = s.Generation
		}
	}
	return all
}
