package stage_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
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

// draws is a device that notes what is dropped out, and counts what is added to running statistics.
type draws struct {
	device.Device
	dropped []device.DropoutMask
}

func (d *draws) Do(op device.Op) {
	if o, ok := op.(*device.Dropout); ok {
		d.dropped = append(d.dropped, o.DropoutMask)
	}
	d.Device.Do(op)
}

// A forward that is computed again drops out what the first dropped, and so does the backward.
func TestWhatIsComputedAgainDrawsAgain(t *testing.T) {
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 6, "vocab_size": 11, "resid_pdrop": 0.2, "embd_pdrop": 0.1,
	})
	if err != nil {
		t.Fatal(err)
	}
	var masks [][]device.DropoutMask
	for _, kind := range []stage.Recompute{stage.RecomputeNone, stage.RecomputeBlock, stage.RecomputeFull} {
		d := &draws{Device: ref.New()}
		p := stagetest.NewPipeline(t, stagetest.PipelineConfig{Device: d, Model: m, Stages: 1, Samples: 2, Micros: 2, Recompute: kind})
		if _, _, err := p.Run(batch(4, 6, 1)); err != nil {
			t.Fatal(err)
		}
		distinct := slices.Clone(d.dropped)
		slices.SortFunc(distinct, func(a, b device.DropoutMask) int {
			return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.First, b.First))
		})
		distinct = slices.Compact(distinct)
		if len(distinct) == len(d.dropped) || len(distinct) != 2*(1+2*2) {
			t.Errorf("recompute %s: %d masks, %d of them distinct, of 5 dropouts and 2 micro-batches", kind, len(d.dropped), len(distinct))
		}
		masks = append(masks, distinct)
	}
	if !slices.Equal(masks[0], masks[1]) || !slices.Equal(masks[0], masks[2]) {
		t.Error("recomputation drops out something else")
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
		// Block needs what one layer makes for all slots, less than a quarter of a micro-batch; full one micro-batch's memory.
		if saved, least := total[none]-total[stage.RecomputeBlock], slots*(inFlight[none]-inFlight[stage.RecomputeBlock])-inFlight[none]/4; saved < least {
			t.Errorf("layers %v: block saves %d bytes, want %d at least", r, saved, least)
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
