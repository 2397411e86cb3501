package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/pipeline"
)

// vectors pairs the names of a shard file with the memory of a snapshot, in the order of the file. The same pairing writes a
// shard and reads it back.
func vectors(s *pipeline.Snapshot) (names []shard.Vector, memory [][]float32) {
	add := func(name string, v []float32) {
		names = append(names, shard.Vector{Name: name, Elements: len(v)})
		memory = append(memory, v)
	}
	add(shard.CenterVector, s.Center)
	for j, v := range s.State {
		add(shard.AveragingVector(j), v)
	}
	for _, p := range s.Pipelines {
		add(shard.ParametersVector(p.Pipeline), p.Parameters)
		for j, v := range p.State {
			add(shard.StateVector(p.Pipeline, j), v)
		}
		if p.Predicted != nil {
			add(shard.PredictedVector(p.Pipeline), p.Predicted)
		}
		if p.Message != nil {
			add(shard.MessageVector(p.Pipeline), p.Message)
		}
		if p.Residual != nil {
			add(shard.ResidualVector(p.Pipeline), p.Residual)
		}
	}
	return names, memory
}

// writeWhenPossible is write, tried again for as long as an obstacle is in the way: what was trained is not lost to a disk that is
// full for a while. Training goes on meanwhile; the next commit is not begun before this one is complete.
func (t *trainer) writeWhenPossible(ctx context.Context, h *host, s *pipeline.Snapshot) (info control.ShardInfo, err error) {
	defer t.progress.hold(s.Stage, "")
	var o *obstacle.Obstacle
	said := ""
	for try := 0; ; try++ {
		if o == nil || o.Kind == obstacle.Damaged || o.Passed() == nil { // only another try tells whether a person has put a file back
			info, err = t.write(ctx, h, s)
			if o = obstacle.Of(err); o == nil {
				return info, err
			}
			if now := o.String(); now != said {
				t.log.Warn("a commit waits", zap.Uint64("round", s.Round), zap.Int("stage", s.Stage), zap.String("for", now), zap.Error(err))
				t.progress.hold(s.Stage, fmt.Sprintf("the commit of round %d waits: %s", s.Round, now))
				said = now
			}
		}
		select {
		case <-time.After(obstacle.Pause(try)):
		case <-ctx.Done():
			return info, context.Cause(ctx)
		}
	}
}

// write makes a stage's part of a round durable in the job's store.
func (t *trainer) write(ctx context.Context, h *host, s *pipeline.Snapshot) (control.ShardInfo, error) {
	now := time.Now()
	cursors := make([]shard.Cursor, t.assignment.Spec.Job.Pipelines)
	for i := range cursors {
		cursors[i] = shard.Cursor{Pipeline: i, Step: s.Round * t.tau()}
	}
	of := h.hosted(s.Stage)
	if err := h.keepFrozen(ctx, of); err != nil {
		return control.ShardInfo{}, err
	}
	about := of.meta
	about.Count, about.Synchronous, about.Frozen = s.Count, s.Synchronous, of.frozen.file.Digest
	about.First, _ = t.assignment.Shared()
	about.InFlight = s.InFlight
	for _, p := range s.Pipelines {
		about.Updates = append(about.Updates, p.Updates)
	}
	meta, err := json.Marshal(about)
	if err != nil {
		return control.ShardInfo{}, fmt.Errorf("encode the meta of stage %d: %w", s.Stage, err)
	}
	names, memory := vectors(s)
	header := shard.Header{
		Job: t.assignment.JobID, Generation: t.assignment.Generation, Round: s.Round, Stage: s.Stage, Stages: len(h.ranges),
		Vectors: names, Cursors: cursors, Meta: meta,
	}
	digest, bytes, err := shard.Write(ctx, h.store, &header, memory)
	if err != nil {
		return control.ShardInfo{}, err
	}
	said := t.progress.meta(s.Round, h.set.Identity.Digest, now)
	budget, final := h.budget, h.origin.final(&h.budget)
	budget.Samples, budget.Steps = h.origin.seen(final), final*t.tau()
	said.Budget, said.Epoch = &budget, h.set.Samples()
	center, squares := distances(s)
	if t.assignment.Spec.Job.Pipelines == 1 { // it is the center
		center, squares = 0, nil
	}
	return control.ShardInfo{
		CenterSquare: center, Squares: squares,
		Group: t.assignment.Group, Stage: s.Stage, Digest: string(digest), Bytes: bytes, Layers: of.meta.Layers, Cursors: cursors,
		Meta: said, Frozen: of.frozen.file,
	}, nil
}
