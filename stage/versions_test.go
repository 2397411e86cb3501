package stage_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// delayed trains a model of one stage with gradients of weights that are `delay` steps old.
type delayed struct {
	*testing.T
	config stage.Config
	halves bool
}

const delayedMicros, delay = 7, 2

// data of a micro-batch: ids or pixels, and targets.
func (d delayed) data(s stage.Shape, micro int) (input, labels []byte) {
	input, labels = stage.NewBoundary(s.InputBytes), stage.NewBoundary(s.LabelBytes)
	rng := rand.New(rand.NewPCG(uint64(micro), 1))
	for i := 0; i < len(input); i += 4 {
		x := rng.Uint32N(5)
		if d.config.Model.Task == model.Images {
			x = math.Float32bits(float32(rng.NormFloat64()))
		}
		binary.NativeEndian.PutUint32(input[i:], x)
	}
	for i := 0; i < len(labels); i += 4 {
		binary.NativeEndian.PutUint32(labels[i:], rng.Uint32N(5))
	}
	return input, labels
}

func (d delayed) open(versions, slots int) *stage.Computed {
	d.Helper()
	c := d.config
	c.Versions, c.Slots = versions, slots
	if d.halves {
		c.WeightSlots = 1
	}
	s, err := stage.New(c)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		if err := s.Close(); err != nil {
			d.Error(err)
		}
	})
	s.ZeroGradients()
	return s
}

func (d delayed) forward(s *stage.Computed, m stage.Micro) {
	d.Helper()
	input, labels := d.data(s.Shape(), m.Index)
	if err := s.Forward(m, stage.OnHost(input), labels, stage.Boundary{}); err != nil {
		d.Fatal(err)
	}
}

func (d delayed) backward(s *stage.Computed, m stage.Micro) {
	d.Helper()
	parts := []stage.Part{stage.Whole}
	if d.halves {
		parts = []stage.Part{stage.Input, stage.Weight}
	}
	for _, part := range parts {
		if err := s.Backward(m, part, stage.Boundary{}, stage.Boundary{}); err != nil {
			d.Fatal(err)
		}
	}
}

func (d delayed) step(s *stage.Computed, h stage.Hyper) {
	d.Helper()
	h.LearningRate, h.GradScale = 0.05, 1
	if err := s.Step(h, nil); err != nil {
		d.Fatal(err)
	}
	s.ZeroGradients()
}

// micro is micro-batch m, which reads the weights of `delay` steps before.
func (d delayed) micro(m int) stage.Micro {
	return stage.Micro{Index: m, Weight: 1, Version: max(0, m-delay)}
}

// pipelined runs the work in a pipeline's order, in which the stage must keep what is still read.
func (d delayed) pipelined() *stage.Computed {
	s := d.open(delay+1, delay+1)
	for m := range delay + 1 {
		d.forward(s, d.micro(m))
	}
	for m := range delayedMicros {
		d.backward(s, d.micro(m))
		h := stage.Hyper{Step: uint64(m), Version: (m + 1) % delayedMicros}
		for later := m + 1; later < delayedMicros; later++ {
			if v := d.micro(later).Version; v <= m && !slices.Contains(h.Stash, v) {
				h.Stash = append(h.Stash, v)
			}
		}
		d.step(s, h)
		if next := m + delay + 1; next < delayedMicros {
			d.forward(s, d.micro(next))
		}
	}
	return s
}

// remembered is all that a stage was at one time.
type remembered [][]float32

func remember(s *stage.Computed) (r remembered) {
	for _, v := range vectorsOf(s) {
		values := make([]float32, v.Len())
		v.Read(values, 0)
		r = append(r, values)
	}
	return r
}

func (r remembered) restore(s *stage.Computed) {
	for i, v := range vectorsOf(s) {
		v.Write(r[i], 0)
	}
}

func vectorsOf(s *stage.Computed) []flat.Vector {
	return append([]flat.Vector{s.Parameters()}, s.State()...)
}

// sequential does the same one micro-batch after the other: it goes back to the weights that the micro-batch reads, takes the
// gradient, and returns to the newest for the step.
func (d delayed) sequential() *stage.Computed {
	s := d.open(1, 1)
	all := []remembered{remember(s)}
	for m := range delayedMicros {
		micro := d.micro(m)
		all[micro.Version].restore(s)
		micro.Version = 0 // the newest is all that this stage knows
		d.forward(s, micro)
		d.backward(s, micro)
		all[m].restore(s)
		d.step(s, stage.Hyper{Step: uint64(m)})
		all = append(all, remember(s))
	}
	return s
}

func TestDelayedGradientsAreThoseOfTheWeightsThatAreRead(t *testing.T) {
	images, err := model.Build("vgg", map[string]any{
		"image_size": 8, "hidden_sizes": []int{4}, "depths": []int{1}, "classifier_sizes": []int{9}, "num_labels": 5, "norm": "batch", "dropout": 0.4,
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(d *delayed){
		"adamw":         func(*delayed) {},
		"momentum":      func(d *delayed) { d.config.Optimizer = stage.Optimizer{Name: "sgd", Momentum: 0.9} },
		"averaged":      func(d *delayed) { d.config.Optimizer = stage.Optimizer{Name: "asgd", T0: 2} },
		"bf16":          func(d *delayed) { d.config.Compute = device.BF16 },
		"bf16 averaged": func(d *delayed) { d.config.Compute, d.config.Optimizer.Name = device.BF16, "asgd" },
		"recompute":     func(d *delayed) { d.config.Recompute = stage.RecomputeFull },
		"halves":        func(d *delayed) { d.halves = true },
		"bf16 recompute halves": func(d *delayed) {
			d.halves, d.config.Compute, d.config.Recompute = true, device.BF16, stage.RecomputeBlock
		},
		"remote memory":          func(d *delayed) { d.config.Device = remote{ref.New()} },
		"queue":                  func(d *delayed) { d.config.Device = late(d.T) },
		"bf16 queue":             func(d *delayed) { d.config.Device, d.config.Compute = late(d.T), device.BF16 },
		"running statistics":     func(d *delayed) { d.config.Model = images },
		"statistics, recomputed": func(d *delayed) { d.config.Model, d.config.Recompute = images, stage.RecomputeFull },
	} {
		t.Run(name, func(t *testing.T) {
			d := &delayed{T: t, config: stage.Config{Device: ref.New(), Model: tiny(t, true), Samples: 2, Seed: 3}}
			change(d)
			found, want := remember(d.pipelined()), remember(d.sequential())
			for i := range want {
				if i == 2 && d.config.Optimizer.Name == "asgd" { // the iterate, which the next forward makes anew
					continue
				}
				if !slices.Equal(found[i], want[i]) {
					t.Errorf("vector %d differs from that of a run that goes back to old weights", i)
				}
			}
			fresh := remember(d.open(1, 1))
			if slices.Equal(found[0], fresh[0]) {
				t.Error("nothing was trained")
			}
		})
	}
}

// late opens a device with a queue.
func late(t *testing.T) device.Device {
	d := stagetest.NewLate()
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestAVersionThatIsNotKeptIsAnError(t *testing.T) {
	d := &delayed{T: t, config: stage.Config{Device: ref.New(), Model: tiny(t, true), Samples: 2}}
	s := d.open(2, 3)
	input, labels := d.data(s.Shape(), 0)
	if err := s.Forward(stage.Micro{Version: 1}, stage.OnHost(input), labels, stage.Boundary{}); err == nil || !strings.Contains(err.Error(), "version 1 of the weights is not kept; the newest is 0") {
		t.Errorf("Forward: %v", err)
	}
	d.forward(s, stage.Micro{Index: 0, Weight: 1})
	d.forward(s, stage.Micro{Index: 1, Weight: 1})
	d.step(s, stage.Hyper{Version: 1, Stash: []int{0}})
	if err := s.Step(stage.Hyper{Version: 2, Stash: []int{0, 1}}, nil); err == nil || !strings.Contains(err.Error(), "2 versions of the weights are asked for") {
		t.Errorf("Step: %v", err)
	}
	d.step(s, stage.Hyper{Version: 2})
	if err := s.Backward(stage.Micro{Index: 1}, stage.Whole, stage.Boundary{}, stage.Boundary{}); err == nil || !strings.Contains(err.Error(), "version 0 of the weights is not kept") {
		t.Errorf("Backward: %v", err)
	}
	if err := s.Step(stage.Hyper{Version: 3, Stash: []int{0}}, nil); err == nil || !strings.Contains(err.Error(), "version 0") {
		t.Errorf("Step: %v", err)
	}
}
