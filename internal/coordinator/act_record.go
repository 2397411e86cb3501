package coordinator

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// Record brings the agent's copy of a job up to date.
func (c *Coordinator) Record(ctx context.Context, id string) error {
	state := c.raft.State()
	j, err := state.Job(id)
	if err != nil {
		return err
	}
	hadWorker := func(j *cluster.Job) bool { return j.Generation > 0 }
	return c.agent.Record(ctx, j, slices.ContainsFunc(state.Jobs(), hadWorker))
}

// record does so with a round that is about to be committed, of which keep are kept.
func (a *act) record(ctx context.Context, next *cluster.Manifest, keep int) error {
	j, err := a.raft.State().Job(a.job.ID)
	if err != nil {
		return err
	}
	now := *j
	now.Committed = append(slices.Clone(j.Committed), next)
	now.Committed = now.Committed[max(0, len(now.Committed)-keep):]
	return a.agent.Record(ctx, &now, true)
}

// remove makes the state forget an ended job, and has its directory deleted.
func (a *act) remove(ctx context.Context) (func(*observed), error) {
	own, err := a.agent.Retire(ctx, a.job, a.decision.reason)
	if err != nil {
		return nil, fmt.Errorf("remove job %s: %w", a.job.ID, err)
	}
	if err := a.propose(ctx, &cluster.RemoveJob{Job: a.job.ID}); err != nil {
		return nil, err
	}
	a.log.Info("job removed", zap.String("job", a.job.ID), zap.String("name", a.job.Name), zap.String("reason", a.decision.reason))
	if !own {
		return nil, nil
	}
	if err := a.agent.Delete(ctx, a.job.ID); err != nil { // the next start deletes it
		return nil, fmt.Errorf("job %s is removed, but its directory is not: %w", a.job.ID, err)
	}
	return nil, nil
}
