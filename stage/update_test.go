package stage_test

import (
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// What a caller who clips asks for in a pass of its own, Step does in its one pass: the vectors get the same bits, and the passes after it
// compute the same loss.
func TestAStepInOnePassIsTheStepInSeveral(t *testing.T) {
	images, err := model.Build("vgg", map[string]any{
		"image_size": 8, "hidden_sizes": []int{4}, "depths": []int{1}, "classifier_sizes": []int{9}, "num_labels": 5, "norm": "batch",
	})
	if err != nil {
		t.Fatal(err)
	}
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for _, optimizer := range []string{"adamw", "adam", "sgd", "asgd"} {
			for _, compute := range []device.Type{device.F32, device.BF16} {
				for _, m := range []*model.Model{tiny(t, true), images} {
					if m == images && compute == device.BF16 {
						continue
					}
					d := delayed{T: t, config: stage.Config{
						Device: dev, Model: m, Samples: 2, Seed: 3, Compute: compute,
						Optimizer: stage.Optimizer{Name: optimizer, WeightDecay: 0.1},
					}}
					several, one := d.stepped(true), d.stepped(false)
					for i := range several {
						if !slices.Equal(several[i], one[i]) {
							t.Errorf("%s in %v: vector %d differs between steps in one pass and in several", optimizer, compute, i)
						}
					}
				}
			}
		}
	})
}

// stepped trains a little, and returns the vectors of the stage, the delta and the losses. measured says that the norm is asked for before
// each step, and that the passes after it make copies of the parameters again.
func (d delayed) stepped(measured bool) remembered {
	s := d.open(1, 1)
	deltas, err := s.NewVector()
	if err != nil {
		d.Fatal(err)
	}
	var losses []float32
	for step := range uint64(4) {
		d.forward(s, stage.Micro{Step: step, Weight: 1})
		if err := s.Backward(stage.Micro{Step: step, Weight: 1}, stage.Whole, stage.Boundary{}, stage.Boundary{}); err != nil {
			d.Fatal(err)
		}
		loss, err := s.Loss()
		if err != nil {
			d.Fatal(err)
		}
		losses = append(losses, float32(loss))
		if measured {
			if _, err := s.SquaredNorm(0); err != nil {
				d.Fatal(err)
			}
		}
		var delta flat.Vector
		if step > 0 {
			delta = deltas
		}
		if err := s.Step(stage.Hyper{Step: step, LearningRate: 0.05, GradScale: 1}, delta); err != nil {
			d.Fatal(err)
		}
		if measured {
			s.Parameters().Scale(1) // writes to them
		}
		s.ZeroGradients()
	}
	values := make([]float32, deltas.Len())
	deltas.Read(values, 0)
	return append(remember(s), values, losses)
}
