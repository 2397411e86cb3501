package stage_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

func TestRecomputationGivesTheSameBits(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		config := stagetest.PipelineConfig{Device: dev, Model: tiny(t, true), Micros: 2, Stages: 1}
		want, wantNumbers := train(t, config)
		for _, kind := range []stage.Recompute{stage.RecomputeBlock, stage.RecomputeFull} {
			for _, c := range []struct {
				stages         int
				halves, remote bool
			}{{1, false, false}, {1, true, true}, {2, false, false}, {2, true, false}, {3, false, true}, {4, true, false}} {
				split := config
				split.Recompute, split.Stages, split.Halves = kind, c.stages, c.halves
				if c.remote {
					split.Device = remote{dev}
				}
				what := fmt.Sprintf("recompute %s, K=%d, halves %v, remote memory %v", kind, c.stages, c.halves, c.remote)
				found, numbers := train(t, split)
				requireSameBits(t, what, found, want)
				if !slices.Equal(numbers, wantNumbers) {
					t.Errorf("%s: losses and norms %v, want %v", what, numbers, wantNumbers)
				}
			}
		}
	})
}

// observed notes the forward passes of a layer.
type observed struct {
	layer.Layer
	passes *[]layer.Pass
}

func (o observed) Forward(p layer.Pass) {
	*o.passes = append(*o.passes, p)
	o.Layer.Forward(p)
}

func TestEveryLayerRunsOnceMoreAndIsTold(t *testing.T) {
	for _, kind := range []stage.Recompute{stage.RecomputeBlock, stage.RecomputeFull} {
		m := *tiny(t, true)
		passes := make([][]layer.Pass, len(m.Layers))
		m.Layers = slices.Clone(m.Layers)
		for i := range m.Layers {
			m.Layers[i] = observed{m.Layers[i], &passes[i]}
		}
		p := stagetest.NewPipeline(t, stagetest.PipelineConfig{
			Device: ref.New(), Model: &m, Stages: 2, Samples: 2, Micros: 2, Recompute: kind,
		})
		if _, _, err := p.Run(batch(4, 6, 1)); err != nil {
			t.Fatal(err)
		}
		for i, all := range passes {
			if len(all) != 4 {
				t.Errorf("recompute %s: layer %d ran %d forward passes for 2 micro-batches, want 4", kind, i, len(all))
				continue
			}
			// All forwards, then all backwards, micro-batch after micro-batch.
			for micro := range 2 {
				first, second := all[micro], all[2+micro]
				if first.Recomputing || !second.Recomputing || first.Evaluating || second.Evaluating {
					t.Errorf("recompute %s: layer %d, micro-batch %d: Recomputing is %v, then %v", kind, i, micro, first.Recomputing, second.Recomputing)
				}
				if first.Key != second.Key || first.First != second.First || first.Weight != second.Weight {
					t.Errorf("recompute %s: layer %d, micro-batch %d: the second pass draws from another source", kind, i, micro)
				}
			}
		}
	}
}

// counting is a device that counts what is allocated.
type counting struct {
	device.Device
	bytes *int
}

func (c counting) Alloc(t device.Type, n int) (device.Mem, error) {
	*c.bytes += n * t.Bytes()
	return c.Device.Alloc(t, n)
}

func TestRecomputationSavesWhatItSays(t *testing.T) {
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": 6, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 31,
	})
	if err != nil {
		t.Fatal(err)
	}
	const slots = 5
	for _, r := range []stage.Range{{From: 0, To: 4}, {From: 4, To: 8}} {
		total, inFlight := map[stage.Recompute]int{}, map[stage.Recompute]int{}
		for _, kind := range []stage.Recompute{stage.RecomputeNone, stage.RecomputeBlock, stage.RecomputeFull} {
			bytes := 0
			s, err := stage.New(stage.Config{
				Device: counting{ref.New(), &bytes}, Model: m, Range: r, Count: 2, Samples: 2, Slots: slots, Recompute: kind,
			})
			if err != nil {
				t.Fatal(err)
			}
			total[kind], inFlight[kind] = bytes, s.Shape().InFlightBytes
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		none := stage.RecomputeNone
		// Block shares the scratch that evaluation has anyway; full needs one micro-batch's memory for all.
		if saved, want := total[none]-total[stage.RecomputeBlock], slots*(inFlight[none]-inFlight[stage.RecomputeBlock]); saved != want {
			t.Errorf("layers %v: block saves %d bytes, want %d", r, saved, want)
		}
		// An empty slot is an allocation of one word.
		if saved, least := total[none]-total[stage.RecomputeFull], (slots-1)*inFlight[none]-slots*4; saved < least || inFlight[stage.RecomputeFull] != 0 {
			t.Errorf("layers %v: full saves %d bytes and keeps %d a micro-batch, want at least %d and nothing", r, saved, inFlight[stage.RecomputeFull], least)
		}
		if inFlight[stage.RecomputeBlock] >= inFlight[none]/4 {
			t.Errorf("layers %v: block keeps %d of %d bytes", r, inFlight[stage.RecomputeBlock], inFlight[none])
		}
	}
}
