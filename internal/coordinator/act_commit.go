package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// beginCommit makes known that a round is to be committed.
func (a *act) beginCommit(ctx context.Context) (func(*observed), error) {
	return nil, a.propose(ctx, &cluster.BeginCommit{Job: a.ID, Generation: a.Generation, Round: a.decision.round})
}

// postCommit asks the workers for their shards, from the one with the first stage on, until one refuses. No worker begins a round before
// the first stage does: once that has agreed to end at a round, nobody else can be past it.
func (a *act) postCommit(ctx context.Context) (func(*observed), error) {
	d := a.decision
	request, first := control.CommitRequest{Generation: a.Generation, Round: d.round, Stop: d.stop}, uint64(0)
	for i, w := range a.workers {
		if w.accepted == d.round && !d.stop {
			continue // before another one could not be asked
		}
		answer, err := a.at(w.process).Commit(ctx, w.process, request)
		if err != nil {
			return func(o *observed) { accept(o.workers[:i], d.round) }, fmt.Errorf("commit round %d%s: %w", d.round, a.of(w), err)
		}
		if i == 0 {
			first = answer.Earliest
		}
		if !answer.Accepted {
			return func(o *observed) {
				o.refuse(d.round, answer.Earliest)
				if d.round >= o.lastRound() { // there is no later one: this one is asked for again
					o.notBefore = a.now().Add(afterFail)
				}
			}, nil
		}
	}
	return func(o *observed) {
		if first > 0 {
			o.agree(first)
		}
		o.offered = 0
		accept(o.workers, d.round)
		o.posted, o.reached = d.round, time.Time{}
		if d.stop {
			o.stopAt = d.round
		}
	}, nil
}

// accept notes that workers have accepted to commit a round.
func accept(workers []*worker, round uint64) {
	for _, w := range workers {
		w.accepted = round
	}
}

// dropCommit gives up the commit in flight.
func (a *act) dropCommit(ctx context.Context) (func(*observed), error) {
	return func(o *observed) { o.offered = 0 }, a.propose(ctx, &cluster.AbortCommit{Job: a.ID, Generation: a.Generation, Round: a.decision.round})
}

// commitRound makes the reported shards durable as a round, and collects what is older than center.keep.
func (a *act) commitRound(ctx context.Context) (func(*observed), error) {
	round := a.decision.round
	m, err := assemble(a.Job, a.spec, round, a.durable)
	if err == nil {
		for k, s := range m.Shards {
			if have := a.have[s.Digest]; len(have) > 0 {
				m.Shards[k].Nodes = have
			}
		}
		err = CheckRound(ctx, m, a.holders(a.ID, []*cluster.Manifest{m}, a.away, agent.Shards.Size).one)
	}
	if what := obstacle.Of(err); what != nil && what.Kind == obstacle.Node {
		return func(o *observed) { o.unseen = round }, fmt.Errorf("commit round %d: %w", round, err) // it is decided about again
	}
	if err != nil {
		return a.commitAgain(ctx, fmt.Errorf("commit round %d: %w", round, err))
	}
	state, keep := a.raft.State(), a.spec.Job.Center.Keep
	before, err := state.Job(a.ID)
	if err != nil {
		return nil, fmt.Errorf("commit round %d: %w", round, err)
	}
	var kept error
	var decided time.Duration
	a.together([]func(){ // each waits for disks
		func() { kept = a.record(ctx, withRound(before, m, keep), nil, state) },
		func() {
			err = a.propose(ctx, &cluster.CommitRound{Job: a.ID, Generation: a.Generation, Round: round, Manifest: *m, Keep: keep})
			decided = a.now().Sub(a.heard)
		},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("commit round %d: %w", round, err), kept)
	}
	if kept == nil { // else the copy may name what would be moved away
		a.collect(ctx, round, digestsOf(a.Committed))
	}
	a.Counts.Commits.Add(1)
	took := time.Duration(0)
	fields := []zap.Field{zap.Uint64("round", round), zap.Uint64("samples", m.SamplesSeen), zap.Duration("since_verified", decided)}
	if !a.reached.IsZero() { // a status told of it
		took = a.now().Sub(a.reached)
		fields = append(fields, zap.Duration("took", took))
	}
	a.Say(a.ID, "round committed", fields...)
	return func(o *observed) {
		o.took = max(o.took, took)
		o.deaths, o.faults, o.fault = 0, 0, ""
		for r := range o.shards {
			if r <= round {
				delete(o.shards, r)
			}
		}
		clear(o.refused)
		clear(o.copies)
		o.wholeAt = time.Time{}
	}, kept
}

// commitAgain gives up a commit whose shards are not whole, makes that known and deletes them. The workers, if they still can, are asked to
// write them again, or those of another round, after a pause that grows.
func (a *act) commitAgain(ctx context.Context, fault error) (func(*observed), error) {
	round, pause := a.decision.round, obstacle.Pause(a.faults)
	a.sayAt(zap.WarnLevel, a.ID, "a commit failed and is made again", zap.Duration("after", pause), zap.Error(fault))
	_, err := a.dropCommit(ctx)
	if err == nil {
		var useless []shard.Digest
		for _, s := range a.durable {
			useless = append(useless, shard.Digest(s.Digest))
		}
		a.collect(ctx, 0, useless)
	}
	return func(o *observed) {
		o.forget(round)
		o.faults, o.fault, o.commitAt = o.faults+1, fault.Error(), a.now().Add(pause)
	}, errors.Join(fault, err)
}

// assemble makes the manifest of a round from its shards. All stages must have been cut at the same place of the data.
func assemble(j *cluster.Job, of *spec.Spec, round uint64, shards map[int]stored) (*cluster.Manifest, error) {
	stages := of.Stages()
	m := &cluster.Manifest{Job: j.ID, Generation: j.Generation, Round: round, Stages: stages}
	for k := range of.Shards() {
		s, ok := shards[k]
		if !ok {
			return nil, fmt.Errorf("job %s round %d: the shard of stage %d of group %d is missing", j.ID, round, k%stages, k/stages)
		}
		m.Shards = append(m.Shards, cluster.ShardRef{
			Stage: k % stages, Digest: shard.Digest(s.Digest), Bytes: s.Bytes, Nodes: []string{s.node}, Layers: s.Layers,
			Frozen: s.Frozen.Digest, FrozenBytes: s.Frozen.Bytes,
		})
		if k == 0 {
			m.Cursors = s.Cursors
		}
		if !slices.Equal(s.Cursors, m.Cursors) {
			return nil, fmt.Errorf("job %s round %d: stages 0 and %d, of groups 0 and %d, were cut at different places of the data: %v and %v",
				j.ID, round, k%stages, k/stages, m.Cursors, s.Cursors)
		}
	}
	meta := shards[stages-1].Meta // the last stage knows the loss; that of the center the first group alone
	var losses []*float64
	for k := stages - 1; k < len(m.Shards); k += stages {
		losses = append(losses, shards[k].Meta.Loss)
	}
	meta.Loss, meta.Distances = mean(losses), distances(stages, shards)
	m.SamplesSeen = meta.SamplesSeen
	var err error
	if m.Meta, err = json.Marshal(meta); err != nil {
		return nil, fmt.Errorf("job %s round %d: encode its meta: %w", j.ID, round, err)
	}
	return m, nil
}
