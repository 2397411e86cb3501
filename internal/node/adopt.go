package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// adopt finds the processes that an earlier daemon left. Workers of a job's current generation are watched from here on; all
// others are killed: nothing that those workers compute can be committed any more, and what a tuning prints is read by the
// daemon that started it alone. It runs before the coordinator.
func (n *node) adopt(ctx context.Context) error {
	root := filepath.Join(n.config.StateDir, "jobs")
	if err := os.MkdirAll(root, 0o750); err != nil {
		return fmt.Errorf("adopt workers: %w", err)
	}
	if err := endTunings(n.config.StateDir); err != nil {
		return err
	}
	found, err := findProcesses(root)
	if err != nil {
		return err
	}
	state := n.raft.State()
	for dir, processes := range found {
		id := filepath.Base(dir)
		current := n.current(ctx, state, id, dir, processes)
		for _, p := range processes {
			if p != current {
				n.log.Warn("killing a process that no job needs", zap.String("job", id), zap.Int("process", p.pid))
				if err := p.kill(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// endTunings ends the tunings of no job that an earlier daemon left, and removes what they leave.
func endTunings(state string) error {
	root := tuningsDir(state)
	left, err := findProcesses(root)
	if err != nil {
		return err
	}
	for _, processes := range left {
		for _, p := range processes {
			if err := p.kill(); err != nil {
				return err
			}
		}
	}
	if err := os.RemoveAll(root); err != nil {
		return fmt.Errorf("remove what tunings left: %w", err)
	}
	return nil
}

// tuningsDir holds a directory for each tuning of no job while it runs.
func tuningsDir(state string) string { return filepath.Join(state, "tunings") }

// current adopts the one process, if any, that is the worker of the job's current generation, and returns it.
func (n *node) current(ctx context.Context, state *cluster.State, id, dir string, processes []process) process {
	j, err := state.Job(id)
	if err != nil || j.State != cluster.Starting && j.State != cluster.Running {
		return process{}
	}
	client := newWorkerClient(dir)
	defer client.close()
	s, err := client.status(ctx)
	if err != nil || s.JobID != id || s.Generation != j.Generation {
		n.log.Warn("a worker is not adopted", zap.String("job", id), zap.Uint64("generation", j.Generation),
			zap.Uint64("its", s.Generation), zap.Error(err))
		return process{}
	}
	for _, p := range processes {
		if p.pid != s.PID {
			continue
		}
		n.say(id, "adopted the worker of an earlier daemon", zap.Int("process", p.pid), zap.Uint64("generation", s.Generation))
		w := newWorker(id, s.Generation, dir, p)
		o := n.job(id)
		now := time.Now()
		o.begin(w, loading)
		o.take(report{worker: w, status: &s}, now)
		n.follow(ctx, w)
		return p
	}
	return process{}
}

// statusPath is where the last status of a job's last worker is kept.
func statusPath(dir string) string { return filepath.Join(dir, "status.json") }
