package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/schedule"
)

// place begins the job's next generation: its worker resumes from the newest committed round whose shards are whole.
func (a *act) place(ctx context.Context) (func(*observed), error) {
	plan, _, err := a.spec.Plan()
	if err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.ID, err)
	}
	from, reason, err := a.chooseRound(ctx)
	if err != nil {
		return nil, err
	}
	// The directory is made after its rounds were found: it may be on a mount that is late.
	if err := a.Record(ctx, a.ID); err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.ID, err)
	}
	a.collect(ctx, math.MaxUint64) // nothing is being committed
	start := uint64(0)
	if from != nil {
		start = from.Round
	}
	placed := placeOn(a.config.Node, a.spec, a.taking)
	where, err := json.Marshal(placed)
	if err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.ID, err)
	}
	result, err := a.raft.Apply(ctx, &cluster.BeginGeneration{
		Job: a.ID, Generation: a.Generation, Placement: where, From: start, Reason: reason,
	})
	if err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.ID, err)
	}
	a.Say(a.ID, "starting a worker", zap.Uint64("generation", result.Generation), zap.String("reason", reason))
	w, err := a.agent.Start(ctx, a.assignment(result.Generation, plan, placed, from))
	if err != nil {
		return func(o *observed) {
			o.process, o.phase, o.cause = agent.Process{}, exited, err.Error()
			if obstacle.Of(err) == nil {
				o.die(time.Now())
			}
		}, err
	}
	return func(o *observed) {
		o.worker = newWorker(w)
		a.follow(w)
	}, nil
}

// assignment tells a worker everything.
func (a *act) assignment(generation uint64, plan schedule.Plan, placed placement, from *cluster.Manifest) control.Assignment {
	places := make([]control.StagePlace, len(placed))
	for k := range places {
		places[k].Node = placed[k].Node
	}
	return control.Assignment{
		JobID: a.ID, Generation: generation,
		Spec: *a.spec, Stages: places, Plan: plan.Lines(), Cores: a.taking, Restore: from,
	}
}

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
	j, err := a.raft.State().Job(a.ID)
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
	own, err := a.agent.Retire(ctx, a.Job, a.decision.reason)
	if err != nil {
		return nil, fmt.Errorf("remove job %s: %w", a.ID, err)
	}
	if err := a.propose(ctx, &cluster.RemoveJob{Job: a.ID}); err != nil {
		return nil, err
	}
	a.log.Info("job removed", zap.String("job", a.ID), zap.String("name", a.Name), zap.String("reason", a.decision.reason))
	if !own {
		return nil, nil
	}
	if err := a.agent.Delete(ctx, a.ID); err != nil { // the next start deletes it
		return nil, fmt.Errorf("job %s is removed, but its directory is not: %w", a.ID, err)
	}
	return nil, nil
}
