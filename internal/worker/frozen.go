package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
)

// frozen is what a stage does not train: one memory for all pipelines, and one file for all rounds.
type frozen struct {
	memory *stage.Frozen // nil before the first pipeline is built
	file   control.FrozenInfo
	values []float32 // of modules of the user's, since their interpreter cannot be asked beside the training; else nil
}

// loadFrozen gives a stage its frozen parameters, once for all pipelines. On the stage's executor.
func (h *host) loadFrozen(ctx context.Context, s *hosted, c stage.Config) (err error) {
	if s.frozen.memory != nil {
		return nil
	}
	if s.frozen.memory, err = stage.NewFrozen(c); err != nil || s.bytes.Frozen == 0 {
		return err
	}
	if !device.KeepsValues(c.Device) {
		return nil
	}
	values, err := h.frozenValues(ctx, s, c)
	if err != nil {
		return fmt.Errorf("frozen parameters of stage %d: %w", s.index, err)
	}
	if s.on.initial != nil {
		s.frozen.values = values
	}
	return s.frozen.memory.Write(values)
}

// frozenValues reads the frozen parameters of a stage: those of the round that is restored, else those that the job begins with, which are
// then made durable, for the rounds to come.
func (h *host) frozenValues(ctx context.Context, s *hosted, c stage.Config) (values []float32, err error) {
	if r := h.assignment.Restore; r != nil {
		refs := h.needs(r, s.index)
		if !sameCut(s, refs, len(h.ranges), r.Stages) {
			return h.recutFrozen(ctx, s, refs)
		}
		values, err = h.readFrozen(ctx, s, refs[0])
		if _, damaged := errors.AsType[*shard.DamagedError](err); damaged || errors.Is(err, fs.ErrNotExist) {
			return h.makeAgain(ctx, s, err)
		}
		return values, err
	}
	if values, err = h.firstFrozen(s, c); err == nil && h.store != (shard.Store{}) { // a trial commits nothing
		s.frozen.file, err = h.writeFrozen(ctx, s, values)
	}
	return values, err
}

// firstFrozen are the frozen parameters that the job begins with.
func (h *host) firstFrozen(s *hosted, c stage.Config) ([]float32, error) {
	values, err := c.FrozenValues(h.begins(s, c))
	return values, s.beginning(err)
}

// writeFrozen makes the frozen parameters of a stage durable. The same ones give the same file in every generation.
func (h *host) writeFrozen(ctx context.Context, s *hosted, values []float32) (file control.FrozenInfo, err error) {
	meta, err := json.Marshal(export.ShardMeta{Layers: s.meta.Layers, Tensors: h.frozenTensors(s)})
	if err != nil {
		return file, err
	}
	file.Digest, file.Bytes, err = shard.Write(ctx, h.store, &shard.Header{
		Job: h.assignment.JobID, Stage: s.index, Stages: len(h.ranges), Meta: meta,
		Vectors: []shard.Vector{{Name: shard.FrozenVector, Elements: len(values)}},
	}, [][]float32{values})
	return file, err
}

// keepFrozen makes sure that the file with the frozen parameters of a stage is there, without which no round can be restored.
func (h *host) keepFrozen(ctx context.Context, s *hosted) error {
	want := s.frozen.file
	if want.Digest == "" {
		return nil
	}
	bytes, err := h.store.Size(ctx, want.Digest)
	switch {
	case err == nil && bytes == want.Bytes:
		return nil
	case err == nil:
		err = fmt.Errorf("%s has %d bytes, expected %d", h.store.Path(want.Digest), bytes, want.Bytes)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if _, err = h.makeAgain(ctx, s, err); err != nil {
		return fmt.Errorf("frozen parameters of stage %d: %w", s.index, err)
	}
	return nil
}

// makeAgain makes the file with the frozen parameters of a stage again, which is lost, from what the job began with: on the device they may be
// rounded. The error is an obstacle where that is gone too, or is another.
func (h *host) makeAgain(ctx context.Context, s *hosted, fault error) (values []float32, err error) {
	h.repairing.Lock()
	defer h.repairing.Unlock()
	var problem error
	if h.weights == nil { // of a round that was restored
		problem = h.openWeights(&h.assignment.Spec)
	}
	if values = s.frozen.values; problem == nil && values == nil {
		if values, problem = h.firstFrozen(s, h.stage(s, 0)); problem != nil && h.weights != nil {
			problem = errors.Join(problem, h.weights.Close())
			h.weights = nil // the next try opens them anew
		}
	}
	want := s.frozen.file
	if problem == nil {
		made, err := h.writeFrozen(ctx, s, values)
		if err != nil {
			return nil, err
		}
		if made == want {
			h.log.Warn("frozen parameters were lost, and are made again", zap.Int("stage", s.index), zap.Error(fault))
			return values, nil
		}
		problem = errors.Join(fmt.Errorf("what the job began with gives %s", made.Digest), os.Remove(h.store.Path(made.Digest)))
	}
	o := obstacle.Obstacle{Kind: obstacle.Damaged, Path: h.store.Path(want.Digest), Bytes: want.Bytes}
	if _, damaged := errors.AsType[*shard.DamagedError](fault); damaged {
		o.Bytes = -1 // its length tells nothing
	}
	return nil, &obstacle.Error{Obstacle: o, Err: fmt.Errorf("%w; no round can be restored without them, and they cannot be made again: %w; "+
		"put that file back, or model.from as it was when the job was submitted, and `avgpipectl resume %s`", fault, problem, h.assignment.JobID)}
}

// frozenTensors says where they lie.
func (h *host) frozenTensors(s *hosted) []stage.Tensor {
	r := h.ranges[s.index]
	return stage.Layout(h.model.Layers[r.From:r.To], true)
}

// readFrozen reads them from the file of a committed round.
func (h *host) readFrozen(ctx context.Context, s *hosted, of cluster.ShardRef) (values []float32, err error) {
	s.frozen.file = control.FrozenInfo{Digest: of.Frozen, Bytes: of.FrozenBytes}
	err = shard.Read(ctx, h.store, of.Frozen, func(header *shard.Header) ([][]float32, error) {
		var meta export.ShardMeta
		if err := json.Unmarshal(header.Meta, &meta); err != nil {
			return nil, fmt.Errorf("meta: %w", err)
		}
		tensors := h.frozenTensors(s)
		if !slices.EqualFunc(meta.Tensors, tensors, sameTensor) || len(header.Vectors) != 1 || header.Vectors[0].Name != shard.FrozenVector {
			return nil, fmt.Errorf("holds %d vectors of %d tensors; the stage has %d that are not trained: it is of another model or split",
				len(header.Vectors), len(meta.Tensors), len(tensors))
		}
		values = make([]float32, header.Vectors[0].Elements)
		return [][]float32{values}, nil
	})
	return values, err
}
