package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/reshard"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// needs are the shards of a round that a stage is made of.
func (h *host) needs(r *cluster.Manifest, stage int) []cluster.ShardRef {
	split := make([][2]int, len(h.ranges))
	for k, part := range h.ranges {
		split[k] = [2]int{part.From, part.To}
	}
	from, to := h.assignment.Shared()
	return reshard.Needs(r, reshard.Part{Split: split, Stage: stage, From: from, To: to})
}

// wanted are the ranges of one shard that stages here need.
type wanted struct {
	header shard.Header // that they were found by
	ranges []shard.Range
}

// restore reads the stages that live here from the shards of a committed round. Each shard is read once, and verified before anything of it
// is used.
func (h *host) restore(ctx context.Context, r *cluster.Manifest) ([]*pipeline.Snapshot, error) {
	snapshots, files := make([]*pipeline.Snapshot, len(h.stages)), map[shard.Digest]*wanted{}
	var order []shard.Digest
	for i := range h.stages {
		s := &h.stages[i]
		refs := h.needs(r, s.index)
		var err error
		if snapshots[i], err = h.prepare(s, r, refs, files); err != nil {
			return nil, fmt.Errorf("restore stage %d from round %d: %w", s.index, r.Round, err)
		}
		for _, ref := range refs {
			if !slices.Contains(order, ref.Digest) {
				order = append(order, ref.Digest)
			}
		}
	}
	for _, d := range order {
		if err := h.readWanted(ctx, d, files[d]); err != nil {
			return nil, fmt.Errorf("restore from round %d: %w", r.Round, err)
		}
	}
	return snapshots, nil
}

// readWanted reads what is wanted of a shard.
func (h *host) readWanted(ctx context.Context, d shard.Digest, w *wanted) error {
	return shard.ReadRanges(ctx, h.store, d, func(header *shard.Header) ([]shard.Range, error) {
		if !slices.Equal(header.Vectors, w.header.Vectors) || string(header.Meta) != string(w.header.Meta) {
			return nil, errors.New("it changed while it was read")
		}
		return w.ranges, nil
	})
}

// prepare checks that the shards of a stage are those that the assignment means, allocates the stage's snapshot, and notes which ranges of
// which file it takes.
func (h *host) prepare(s *hosted, r *cluster.Manifest, refs []cluster.ShardRef, files map[shard.Digest]*wanted) (*pipeline.Snapshot, error) {
	sources, err := h.sources(refs, func(c cluster.ShardRef) shard.Digest { return c.Digest })
	if err != nil {
		return nil, err
	}
	for i, from := range sources {
		if at := from.Header; at.Round != r.Round || at.Job != cmp.Or(r.Job, h.assignment.JobID) || at.Stages != r.Stages || at.Stage != refs[i].Stage {
			return nil, fmt.Errorf("shard %s is of job %s round %d stage %d of %d, expected job %s round %d stage %d of %d", refs[i].Digest,
				at.Job, at.Round, at.Stage, at.Stages, cmp.Or(r.Job, h.assignment.JobID), r.Round, refs[i].Stage, r.Stages)
		}
	}
	first, end := h.assignment.Shared()
	spec := h.assignment.Spec.Job
	method, err := jobfile.Averaging(&spec.Averaging, int(spec.Pipelines))
	if err != nil {
		return nil, err
	}
	needs := method.Needs()
	keeps := reshard.Keeps{Predicted: needs.Predicts, Message: needs.Earlier, Residual: spec.Groups > 1 && method.Config().Precision.Feedback()}
	inFlight := reshard.InFlight(sources)
	averaging := needs.Restores(inFlight)
	a, err := reshard.Assemble(sources, reshard.Target{
		Layers: s.meta.Layers, Tensors: s.meta.Tensors, Elements: s.shape.Parameters, State: s.shape.StateVectors,
		Averaging: averaging, Keeps: keeps, Alike: needs.Gradients, Pipelines: int(spec.Pipelines), From: first, To: end,
	})
	if err != nil {
		return nil, err
	}
	allocate := func() []float32 { return make([]float32, s.shape.Parameters) }
	out := &pipeline.Snapshot{Stage: s.index, Round: r.Round, Count: a.Count, Synchronous: a.Synchronous, InFlight: inFlight, Center: allocate()}
	for range averaging {
		out.State = append(out.State, allocate())
	}
	for i, updates := range a.Updates {
		p := pipeline.PipelineState{Pipeline: a.Pipelines[i], Step: h.origin.step, Updates: updates, Parameters: allocate()}
		for range s.shape.StateVectors {
			p.State = append(p.State, allocate())
		}
		for into, kept := range map[*[]float32]bool{&p.Predicted: keeps.Predicted, &p.Message: keeps.Message, &p.Residual: keeps.Residual} {
			if kept {
				*into = allocate()
			}
		}
		out.Pipelines = append(out.Pipelines, p)
	}
	_, memory := vectors(out)
	for i, from := range sources {
		d := refs[i].Digest
		if files[d] == nil {
			files[d] = &wanted{header: from.Header}
		}
		for _, p := range a.Pieces {
			if p.Source == i {
				into := memory[p.To][p.At : p.At+p.Elements]
				files[d].ranges = append(files[d].ranges, shard.Range{Vector: p.Vector, From: p.From, Into: into})
			}
		}
	}
	return out, nil
}

// sources are the headers of files of a round.
func (h *host) sources(refs []cluster.ShardRef, file func(cluster.ShardRef) shard.Digest) ([]reshard.Source, error) {
	all := make([]reshard.Source, 0, len(refs))
	for _, ref := range refs {
		header, err := h.store.Header(file(ref))
		if err != nil {
			return nil, err
		}
		s, err := reshard.ParseSource(header)
		if err != nil {
			return nil, fmt.Errorf("shard %s: %w", file(ref), err)
		}
		all = append(all, s)
	}
	return all, nil
}

// recutFrozen reads the frozen parameters of a stage from the files of a round that was cut elsewhere, and makes them durable in a file of its
// own.
func (h *host) recutFrozen(ctx context.Context, s *hosted, refs []cluster.ShardRef) ([]float32, error) {
	refs = slices.DeleteFunc(slices.Clone(refs), func(c cluster.ShardRef) bool { return c.Frozen == "" })
	values, err := h.assembleFrozen(ctx, s, refs)
	if _, damaged := errors.AsType[*shard.DamagedError](err); damaged || errors.Is(err, fs.ErrNotExist) {
		o := obstacle.Obstacle{Kind: obstacle.Damaged, Bytes: -1}
		for _, c := range refs {
			if _, bad := h.store.Verify(ctx, c.Frozen); bad != nil {
				o.Path = h.store.Path(c.Frozen)
				break
			}
		}
		return nil, &obstacle.Error{Obstacle: o, Err: fmt.Errorf("%w; put that file back and `avgpipectl resume %s`, or resume with the number of "+
			"stages that the round was committed with, which makes it again", err, h.assignment.JobID)}
	}
	if err == nil {
		s.frozen.file, err = h.writeFrozen(ctx, s, values)
	}
	return values, err
}

func (h *host) assembleFrozen(ctx context.Context, s *hosted, refs []cluster.ShardRef) ([]float32, error) {
	sources, err := h.sources(refs, func(c cluster.ShardRef) shard.Digest { return c.Frozen })
	if err != nil {
		return nil, err
	}
	tensors := h.frozenTensors(s)
	pieces, err := reshard.AssembleFrozen(sources, tensors)
	if err != nil {
		return nil, err
	}
	last := tensors[len(tensors)-1]
	values := make([]float32, last.Offset+layer.Padded(last.Len()))
	for i, from := range sources {
		w := &wanted{header: from.Header}
		for _, p := range pieces {
			if p.Source == i {
				w.ranges = append(w.ranges, shard.Range{From: p.From, Into: values[p.At : p.At+p.Elements]})
			}
		}
		if err := h.readWanted(ctx, refs[i].Frozen, w); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// sameCut reports whether the only shard that a stage needs is of the same layers.
func sameCut(s *hosted, refs []cluster.ShardRef, stages, was int) bool {
	return len(refs) == 1 && (refs[0].Layers == s.meta.Layers && refs[0].Stage == s.index && stages == was || refs[0].Layers[1] == 0)
}

// metaOf is what a shard says of itself.
func (h *host) metaOf(d shard.Digest) (meta export.ShardMeta, err error) {
	header, err := h.store.Header(d)
	if err == nil {
		err = json.Unmarshal(header.Meta, &meta)
	}
	return meta, err
}

func sameTensor(a, b stage.Tensor) bool {
	return a.Name == b.Name && slices.Equal(a.Shape, b.Shape) && a.Offset == b.Offset && a.TiedTo == b.TiedTo
}
