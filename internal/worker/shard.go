package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/stage"
)

// vectors pairs the names of a shard file with the memory of a snapshot, in the order of the file. The same pairing writes a
// shard and reads it back.
func vectors(s *pipeline.Snapshot) (names []shard.Vector, memory [][]float32) {
	add := func(name string, v []float32) {
		names = append(names, shard.Vector{Name: name, Elements: len(v)})
		memory = append(memory, v)
	}
	add(shard.CenterVector, s.Center)
	for _, p := range s.Pipelines {
		add(shard.ParametersVector(p.Pipeline), p.Parameters)
		for j, v := range p.State {
			add(shard.StateVector(p.Pipeline, j), v)
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
	about.Count, about.Frozen = s.Count, of.frozen.file.Digest
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
	said := t.progress.meta(s.Round, t.tau(), h.set.Identity.Digest, now)
	said.Budget = &h.budget
	return control.ShardInfo{
		Stage: s.Stage, Digest: string(digest), Bytes: bytes, Cursors: cursors,
		Meta: said, Frozen: of.frozen.file,
	}, nil
}

// restore reads a stage's shard of a committed round. It is verified before anything of it is used.
func (h *host) restore(ctx context.Context, s *hosted, r *cluster.Manifest) (*pipeline.Snapshot, error) {
	snapshot := &pipeline.Snapshot{Stage: s.index, Round: r.Round}
	err := shard.Read(ctx, h.store, r.Shards[s.index].Digest, func(header *shard.Header) ([][]float32, error) {
		return h.prepare(s, r, header, snapshot)
	})
	if err != nil {
		return nil, fmt.Errorf("restore stage %d from round %d: %w", s.index, r.Round, err)
	}
	return snapshot, nil
}

// prepare checks that a shard is the one that the assignment means and holds the vectors that the stage has, allocates the snapshot, and
// returns its memory in the order of the file.
func (h *host) prepare(s *hosted, r *cluster.Manifest, header *shard.Header, into *pipeline.Snapshot) ([][]float32, error) {
	if header.Round != r.Round || header.Stage != s.index || header.Stages != len(h.ranges) || header.Job != h.assignment.JobID {
		return nil, fmt.Errorf("is of job %s round %d stage %d of %d, expected job %s round %d stage %d of %d",
			header.Job, header.Round, header.Stage, header.Stages, h.assignment.JobID, r.Round, s.index, len(h.ranges))
	}
	var meta export.ShardMeta
	if err := json.Unmarshal(header.Meta, &meta); err != nil {
		return nil, fmt.Errorf("meta: %w", err)
	}
	if meta.Layers != s.meta.Layers || !slices.EqualFunc(meta.Tensors, s.meta.Tensors, sameTensor) {
		return nil, fmt.Errorf("holds layers %v with %d tensors, the stage has layers %v with %d: it is of another model or split",
			meta.Layers, len(meta.Tensors), s.meta.Layers, len(s.meta.Tensors))
	}
	allocate := func(vectors int) [][]float32 {
		all := make([][]float32, vectors)
		for i := range all {
			all[i] = make([]float32, s.shape.Parameters)
		}
		return all
	}
	into.Count, into.Center = meta.Count, allocate(1)[0]
	for i, updates := range meta.Updates {
		p := pipeline.PipelineState{Pipeline: i, Step: r.Cursors[i].Step, Updates: updates}
		p.Parameters, p.State = allocate(1)[0], allocate(s.shape.StateVectors)
		into.Pipelines = append(into.Pipelines, p)
	}
	names, memory := vectors(into)
	if !slices.Equal(header.Vectors, names) {
		return nil, fmt.Errorf("its %d vectors are not those of %d pipelines with %d parameters and %d vectors of optimizer state each: "+
			"it is of another model or optimizer", len(header.Vectors), len(meta.Updates), s.shape.Parameters, s.shape.StateVectors)
	}
	return memory, nil
}

func sameTensor(a, b stage.Tensor) bool {
	return a.Name == b.Name && slices.Equal(a.Shape, b.Shape) && a.Offset == b.Offset && a.TiedTo == b.TiedTo
}
