package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
)

// frozen is what a stage does not train: one memory for all pipelines, and one file for all rounds.
type frozen struct {
	memory *stage.Frozen // nil before the first pipeline is built
	file   control.FrozenInfo
}

// loadFrozen gives a stage its frozen parameters, once for all pipelines. On the stage's executor.
func (h *host) loadFrozen(ctx context.Context, s *hosted, c stage.Config) (err error) {
	if s.frozen.memory != nil {
		return nil
	}
	if s.frozen.memory, err = stage.NewFrozen(c); err != nil || s.bytes.Frozen == 0 {
		return err
	}
	if _, emulates := device.EmulatorOf(c.Device); emulates { // it holds no values
		return nil
	}
	values, err := h.frozenValues(ctx, s, c)
	if err != nil {
		return fmt.Errorf("frozen parameters of stage %d: %w", s.index, err)
	}
	return s.frozen.memory.Write(values)
}

// frozenValues reads the frozen parameters of a stage: those of the round that is restored, else those of model.from or of the seed, which
// are then made durable, for the rounds to come.
func (h *host) frozenValues(ctx context.Context, s *hosted, c stage.Config) (values []float32, err error) {
	if r := h.assignment.Restore; r != nil {
		return h.readFrozen(ctx, s, r.Shards[s.index])
	}
	lookup := stage.Lookup(nil)
	if h.weights != nil {
		lookup = h.weights.Lookup
	}
	if values, err = c.FrozenValues(lookup); err != nil {
		return nil, &permanentError{err}
	}
	if h.store == (shard.Store{}) { // a trial commits nothing
		return values, nil
	}
	meta, err := json.Marshal(export.ShardMeta{Layers: s.meta.Layers, Tensors: h.frozenTensors(s)})
	if err != nil {
		return nil, err
	}
	digest, bytes, err := shard.Write(ctx, h.store, &shard.Header{ // of no generation, so that the next one writes the same file
		Job: h.assignment.JobID, Stage: s.index, Stages: len(h.ranges), Meta: meta,
		Vectors: []shard.Vector{{Name: shard.FrozenVector, Elements: len(values)}},
	}, [][]float32{values})
	s.frozen.file = control.FrozenInfo{Digest: digest, Bytes: bytes}
	return values, err
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
