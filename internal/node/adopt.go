package node

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
)

// adopt takes over the processes that an earlier daemon left. Workers of a job's current generation are watched from here on; all
// others are killed: nothing that those workers compute can be committed any more, and what a tuning prints is read by the
// daemon that started it alone. It runs before the coordinator.
func (n *node) adopt(ctx context.Context) error {
	found, err := n.agent.Processes(ctx)
	if err != nil {
		return fmt.Errorf("adopt workers: %w", err)
	}
	state := n.raft.State()
	for _, r := range found {
		p := r.Process
		j, err := state.Job(p.Job)
		if err != nil || j.State != cluster.Starting && j.State != cluster.Running || r.Status == nil || p.Generation != j.Generation {
			n.log.Warn("killing a process that no job needs", zap.Stringer("process", p), zap.Uint64("generation", p.Generation))
			if err := n.agent.Kill(ctx, p); err != nil {
				return err
			}
			continue
		}
		n.say(p.Job, "adopted the worker of an earlier daemon", zap.Int("process", p.ID.PID), zap.Uint64("generation", p.Generation))
		o := n.job(p.Job)
		o.begin(p, loading)
		o.take(agent.Event{Process: p, Status: r.Status}, time.Now())
		n.follow(ctx, p)
	}
	return nil
}

// statusPath is where the last status of a job's last worker is kept.
func statusPath(dir string) string { return filepath.Join(dir, "status.json") }
