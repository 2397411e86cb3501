package stage_test

import (
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// partly is the tiny model with the last block and the final norm trained.
func partly(t *testing.T) *model.Model {
	t.Helper()
	m, err := tiny(t, true).Train(model.Training{Only: []string{"h.1.*", "ln_f.*"}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Splits of a model of which a part is trained give the same bits, with whole and with halved backwards.
func TestEverySplitOfAFrozenModelGivesTheSameBits(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for _, name := range []string{"adamw", "asgd"} {
			compareSplits(t, stagetest.PipelineConfig{Device: dev, Model: partly(t), Micros: 2, Optimizer: stage.Optimizer{Name: name}})
		}
	})
}

// logits are those of a batch, with the stage's own parameters or with others.
func logits(t *testing.T, s *stage.Computed, own bool) []byte {
	t.Helper()
	b, shape := batch(2, 6, 1), s.Shape()
	out := stage.NewBoundary(shape.OutputBytes)
	var err error
	if own {
		_, err = s.Evaluate(nil, stagetest.Int32Bytes(b.IDs), nil, out)
	} else {
		_, err = s.Evaluate(s.Parameters(), stagetest.Int32Bytes(b.IDs), nil, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What is frozen is computed with, whether the stage has it alone or shares it, and loaded where the stage has it alone.
func TestFrozenParametersAreComputedWith(t *testing.T) {
	for _, compute := range []device.Type{device.F32, device.BF16} {
		dev := ref.New()
		made := func(m *model.Model, frozen *stage.Frozen, seed uint64) *stage.Computed {
			return single(t, func(c *stage.Config) { c.Device, c.Model, c.Frozen, c.Seed, c.Compute = dev, m, frozen, seed, compute })
		}
		want := logits(t, made(tiny(t, true), nil, 7), true)
		own := made(partly(t), nil, 7)
		c := stage.Config{Device: dev, Model: partly(t), Samples: 2, Slots: 1, Seed: 7, Compute: compute}
		shared, err := stage.NewFrozen(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = shared.Close() })
		values, err := c.FrozenValues(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := shared.Write(values); err != nil {
			t.Fatal(err)
		}
		all := map[string][]float32{}
		for _, p := range tiny(t, true).Params() {
			all[p.Name] = make([]float32, p.Len())
			stage.InitialValues(p, 7, all[p.Name])
		}
		loaded := made(partly(t), nil, 8)
		if slices.Equal(logits(t, loaded, true), want) {
			t.Errorf("%v: another seed has the same logits", compute)
		}
		err = loaded.Load(func(name string) ([]int, []float32, bool, error) {
			for _, p := range tiny(t, true).Params() {
				if p.Name == name {
					return p.Shape, all[name], true, nil
				}
			}
			return nil, nil, false, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for what, s := range map[string]*stage.Computed{"of its own": own, "shared": made(partly(t), shared, 7), "loaded": loaded} {
			if !slices.Equal(logits(t, s, true), want) || !slices.Equal(logits(t, s, false), want) {
				t.Errorf("%v: with frozen parameters %s the logits are others than with all trained", compute, what)
			}
		}
	}
}
