package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// act is one choice being carried out. It may block; it touches nothing of the coordinator but through the change that it
// returns.
type act struct {
	node     *node
	job      *cluster.Job
	Spec     *spec.Spec
	decision decision
	worker   agent.Process             // the job's; zero: none
	cores    []int                     // of place and tune
	tuning   agent.Process             // of killTune
	report   *tuner.Report             // of resolve
	shards   map[int]control.ShardInfo // of commitRound, by stage
	reached  time.Time                 // of commitRound
	hold     *hold                     // of probe
}

// run carries the choice out. The change is applied whether or not there is an error.
func (a *act) run(ctx context.Context) (func(*observed), error) {
	switch a.decision.choice {
	case tune:
		return a.tune(ctx)
	case resolve:
		return a.resolve(ctx)
	case killTune:
		return a.killTune(ctx)
	case place:
		return a.place(ctx)
	case beginCommit:
		return nil, a.propose(ctx, &cluster.BeginCommit{Job: a.job.ID, Generation: a.job.Generation, Round: a.decision.round})
	case postCommit:
		return a.postCommit(ctx)
	case dropCommit:
		return nil, a.propose(ctx, &cluster.AbortCommit{Job: a.job.ID, Generation: a.job.Generation, Round: a.decision.round})
	case commitRound:
		return a.commitRound(ctx)
	case setRunning:
		return nil, a.propose(ctx, &cluster.SetState{
			Job: a.job.ID, Generation: a.job.Generation, State: cluster.Running, Reason: a.runningReason(),
		})
	case abortWorker:
		return a.abort(ctx)
	case killWorker:
		return a.kill(ctx)
	case endJob:
		return a.end(ctx)
	case probe:
		return a.probe(ctx), nil
	case removeJob:
		return a.remove(ctx)
	case wait:
	}
	return nil, nil
}

func (a *act) propose(ctx context.Context, c cluster.Command) error {
	_, err := a.node.raft.Apply(ctx, c)
	return err
}

// runningReason says where training began.
func (a *act) runningReason() string {
	if a.job.Generation == 1 {
		return "training"
	}
	return "training; " + a.job.Reason
}

// postCommit asks the worker for its shards.
func (a *act) postCommit(ctx context.Context) (func(*observed), error) {
	d := a.decision
	answer, err := a.node.agent.Commit(ctx, a.worker, control.CommitRequest{Generation: a.job.Generation, Round: d.round, Stop: d.stop})
	if err != nil {
		return nil, fmt.Errorf("commit round %d: %w", d.round, err)
	}
	if !answer.Accepted {
		return func(o *observed) { o.refused[d.round] = max(answer.Earliest, 1) }, nil
	}
	return func(o *observed) {
		o.posted, o.reached = d.round, time.Time{}
		if d.stop {
			o.stopAt = d.round
		}
	}, nil
}

// commitRound makes the reported shards durable as a round, and collects what is older than center.keep.
func (a *act) commitRound(ctx context.Context) (func(*observed), error) {
	round := a.decision.round
	m, err := assemble(a.job, a.node.id, a.Spec.Stages(), round, a.shards)
	if err != nil {
		give := a.propose(ctx, &cluster.AbortCommit{Job: a.job.ID, Generation: a.job.Generation, Round: round})
		return nil, errors.Join(err, give)
	}
	if err := checkRound(ctx, m, a.node.store(a.job.ID).Size); err != nil {
		give := a.propose(ctx, &cluster.AbortCommit{Job: a.job.ID, Generation: a.job.Generation, Round: round})
		return nil, errors.Join(fmt.Errorf("commit round %d: %w", round, err), give)
	}
	keep := a.Spec.Job.Center.Keep
	kept := a.node.keepRecord(a.job.ID, m, keep)
	err = a.propose(ctx, &cluster.CommitRound{Job: a.job.ID, Generation: a.job.Generation, Round: round, Manifest: *m, Keep: keep})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("commit round %d: %w", round, err), kept)
	}
	if kept == nil { // else the copy may name what would be moved away
		a.collect(ctx, round)
	}
	took := time.Duration(0) // faster than one looks
	if !a.reached.IsZero() {
		took = time.Since(a.reached)
	}
	a.node.counts.commits.Add(1)
	a.node.say(a.job.ID, "round committed", zap.Uint64("round", round), zap.Duration("took", took), zap.Uint64("samples", m.SamplesSeen))
	return func(o *observed) {
		o.took = max(o.took, took)
		o.deaths = 0
		for r := range o.shards {
			if r <= round {
				delete(o.shards, r)
			}
		}
		clear(o.refused)
	}, kept
}

// assemble makes the manifest of a round from its shards. All stages must have been cut at the same place of the data.
func assemble(j *cluster.Job, node string, stages int, round uint64, shards map[int]control.ShardInfo) (*cluster.Manifest, error) {
	m := &cluster.Manifest{Job: j.ID, Generation: j.Generation, Round: round, Stages: stages}
	for k := range stages {
		s, ok := shards[k]
		if !ok {
			return nil, fmt.Errorf("job %s round %d: the shard of stage %d is missing", j.ID, round, k)
		}
		m.Shards = append(m.Shards, cluster.ShardRef{Stage: k, Digest: shard.Digest(s.Digest), Bytes: s.Bytes, Nodes: []string{node}})
		cursors := make([]shard.Cursor, len(s.Cursors))
		for i, c := range s.Cursors {
			cursors[i] = shard.Cursor(c)
		}
		if k == 0 {
			m.Cursors = cursors
		}
		for i := range max(len(cursors), len(m.Cursors)) {
			if i >= len(cursors) || i >= len(m.Cursors) || cursors[i] != m.Cursors[i] {
				return nil, fmt.Errorf("job %s round %d: stages 0 and %d were cut at different places of the data: %v and %v",
					j.ID, round, k, m.Cursors, cursors)
			}
		}
	}
	meta := shards[stages-1].Meta // the last stage knows the loss
	m.SamplesSeen = meta.SamplesSeen
	var err error
	if m.Meta, err = json.Marshal(meta); err != nil {
		return nil, fmt.Errorf("job %s round %d: encode its meta: %w", j.ID, round, err)
	}
	return m, nil
}

// abort tells the worker to end. One that does not listen is killed a little later.
func (a *act) abort(ctx context.Context) (func(*observed), error) {
	a.node.say(a.job.ID, "ending the worker", zap.String("reason", a.decision.reason))
	err := a.node.agent.Stop(ctx, a.worker)
	if err != nil {
		err = fmt.Errorf("end the worker: %w", err)
	}
	return func(o *observed) {
		if o.phase != exited {
			o.phase, o.abortedAt = aborted, time.Now()
		}
	}, err
}

func (a *act) kill(ctx context.Context) (func(*observed), error) {
	a.node.say(a.job.ID, "killing the worker", zap.Int("process", a.worker.ID.PID), zap.String("reason", a.decision.reason))
	err := a.node.agent.Kill(ctx, a.worker)
	return func(o *observed) {
		o.quiet = time.Now().Add(afterFail) // its end is noticed before
	}, err
}

// end records that the job is over, with the worker's last status beside it.
func (a *act) end(ctx context.Context) (func(*observed), error) {
	d := a.decision
	final := a.finalStatus(ctx)
	var c cluster.Command = &cluster.EndJob{
		Job: a.job.ID, Generation: a.job.Generation, State: cluster.JobState(d.state), Reason: d.reason, At: time.Now(),
	}
	if d.state == api.Cancelled {
		if by := a.job.CancelledBy; by != "" {
			d.reason = "cancelled by " + by + strings.TrimPrefix(d.reason, "cancelled")
		}
		c = &cluster.CancelJob{Job: a.job.ID, Reason: d.reason, At: time.Now()}
	}
	if err := a.propose(ctx, c); err != nil {
		return nil, err
	}
	a.node.counts.ended(d.state)
	if err := a.node.keepRecord(a.job.ID, nil, 0); err != nil {
		a.node.log.Warn("keep a copy of the job's record", zap.String("job", a.job.ID), zap.Error(err)) // the next start does
	}
	level := zap.InfoLevel
	if d.state == api.Failed {
		level = zap.ErrorLevel
	}
	a.node.sayAt(level, a.job.ID, "job "+string(d.state), zap.String("reason", d.reason))
	return func(o *observed) {
		if final != nil {
			o.status = final
		}
	}, nil
}

// finalStatus asks a living worker once more and keeps the answer for after a restart; nil without one.
func (a *act) finalStatus(ctx context.Context) *control.Status {
	dir := jobDir(a.node.config.StateDir, a.job.ID)
	var last *control.Status
	if s, err := a.node.agent.Status(ctx, a.worker); err == nil && s.Generation == a.job.Generation {
		last = &s
	}
	if last == nil {
		last = a.node.lastStatus(a.job.ID)
	}
	if last == nil {
		return nil
	}
	text, err := json.Marshal(last)
	if err == nil {
		err = checkpoint.WriteFile(checkpoint.OS, statusPath(dir), text, 0o640)
	}
	if err != nil { // for show only: the job is what Raft says it is
		a.node.log.Warn("keep the last status", zap.String("job", a.job.ID), zap.Error(err))
	}
	return last
}

// place begins the job's next generation: its worker resumes from the newest committed round whose shards are whole.
func (a *act) place(ctx context.Context) (func(*observed), error) {
	plan, _, err := a.Spec.Plan()
	if err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.job.ID, err)
	}
	from, reason, err := a.chooseRound(ctx)
	if err != nil {
		return nil, err
	}
	// The directory is made after its rounds were found: it may be on a mount that is late.
	if err := a.node.keepRecord(a.job.ID, nil, 0); err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.job.ID, err)
	}
	a.collect(ctx, math.MaxUint64) // nothing is being committed
	start := uint64(0)
	if from != nil {
		start = from.Round
	}
	where, err := json.Marshal(placement{Node: a.node.id, Cores: a.cores})
	if err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.job.ID, err)
	}
	result, err := a.node.raft.Apply(ctx, &cluster.BeginGeneration{
		Job: a.job.ID, Generation: a.job.Generation, Placement: where, From: &start, Reason: reason,
	})
	if err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.job.ID, err)
	}
	a.node.say(a.job.ID, "starting a worker", zap.Uint64("generation", result.Generation), zap.String("reason", reason))
	w, err := a.node.agent.Start(ctx, a.assignment(result.Generation, plan, from))
	if err != nil {
		return func(o *observed) {
			o.worker, o.phase, o.cause = agent.Process{}, exited, err.Error()
			if obstacle.Of(err) == nil {
				o.die(time.Now())
			}
		}, err
	}
	return func(o *observed) {
		o.begin(w, loading)
		a.node.follow(ctx, w)
	}, nil
}

// assignment tells a worker everything.
func (a *act) assignment(generation uint64, plan schedule.Plan, from *cluster.Manifest) control.Assignment {
	places := make([]control.StagePlace, a.Spec.Stages())
	for k := range places {
		places[k].Node = a.node.id
	}
	out := control.Assignment{
		JobID: a.job.ID, Generation: generation,
		Job: a.Spec.Job, Budget: a.Spec.Budget, User: a.Spec.User, Stages: places, Schedule: a.Spec.Job.Schedule, Plan: plan.Lines(), Cores: a.cores,
	}
	if a.Spec.Layout != nil {
		out.Split = a.Spec.Layout.Split
	}
	if from == nil {
		return out
	}
	r := &control.Restore{Round: from.Round, Meta: from.Meta}
	for _, s := range from.Shards {
		r.Shards = append(r.Shards, string(s.Digest))
	}
	for _, c := range from.Cursors {
		r.Cursors = append(r.Cursors, control.Cursor(c))
	}
	r.Data = roundMeta(from).DataDigest
	out.Restore = r
	return out
}
