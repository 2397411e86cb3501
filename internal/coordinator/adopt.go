package coordinator

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
)

// Adopt takes over the processes that an earlier daemon left. Workers of a job's current generation are watched from here on; all
// others are killed: nothing that those workers compute can be committed any more, and what a tuning prints is read by the
// daemon that started it alone. It comes before Run.
func (c *Coordinator) Adopt(ctx context.Context) error {
	found, err := c.agent.Processes(ctx)
	if err != nil {
		return fmt.Errorf("adopt workers: %w", err)
	}
	state := c.raft.State()
	for _, r := range found {
		p := r.Process
		j, err := state.Job(p.Job)
		if err != nil || j.State != cluster.Starting && j.State != cluster.Running || r.Status == nil || p.Generation != j.Generation {
			c.log.Warn("killing a process that no job needs", zap.Stringer("process", p), zap.Uint64("generation", p.Generation))
			if err := c.agent.Kill(ctx, p); err != nil {
				return err
			}
			continue
		}
		c.Say(p.Job, "adopted the worker of an earlier daemon", zap.Int("process", p.ID.PID), zap.Uint64("generation", p.Generation))
		o := c.job(p.Job)
		o.worker = newWorker(p)
		o.take(agent.Event{Process: p, Status: r.Status}, time.Now())
		c.follow(p)
	}
	return nil
}
