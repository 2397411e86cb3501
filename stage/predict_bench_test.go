package stage_test

import (
	"errors"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/model"
)

// BenchmarkPredict compares a prediction of all of 13 million parameters with the step that it foresees, on the fastest device of this build.
func BenchmarkPredict(b *testing.B) {
	m, err := model.Build("mlp", map[string]any{"image_size": 32, "num_channels": 3, "hidden_sizes": []int{4096}, "num_labels": 100})
	if err != nil {
		b.Fatal(err)
	}
	for _, o := range []stage.Optimizer{{Name: "adamw", WeightDecay: 0.1}, {Name: "sgd", Momentum: 0.9}, {Name: "sgd"}} {
		for _, compute := range []device.Type{device.F32, device.BF16} {
			dev, _, err := pick.Open("cpu", pick.Config{})
			if err != nil {
				b.Fatal(err)
			}
			s, err := stage.New(stage.Config{Device: dev, Model: m, Samples: 1, Slots: 1, Optimizer: o, Compute: compute, Predicts: true})
			if err != nil {
				b.Fatal(err)
			}
			h, n := stage.Hyper{Step: 1, LearningRate: 1e-3, GradScale: 1}, s.Parameters().Len()
			if _, err := s.SquaredNorm(0); err != nil {
				b.Fatal(err)
			}
			what := o.Name + "/" + compute.String()
			if o.Momentum > 0 {
				what = "momentum/" + compute.String()
			}
			timeEach(b, what+"/", map[string]func() error{
				"step":    func() error { return s.Step(h, nil) },
				"predict": func() error { return s.Predict(h, s.Gradients(), flat.Range{From: 0, To: n}) },
				"follow":  func() error { return s.Predict(h, nil) },
			})
			closeBoth(b, s, dev)
		}
	}
}

// timeEach is a benchmark of each of some calls.
func timeEach(b *testing.B, prefix string, calls map[string]func() error) {
	for name, call := range calls {
		b.Run(prefix+name, func(b *testing.B) {
			for b.Loop() {
				if err := call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// closeBoth ends a benchmark.
func closeBoth(b *testing.B, s stage.Stage, dev device.Device) {
	b.Helper()
	if err := errors.Join(s.Close(), dev.Close()); err != nil {
		b.Fatal(err)
	}
}
