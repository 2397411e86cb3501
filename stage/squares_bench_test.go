package stage_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/model"
)

// BenchmarkSquares compares what a step that measures the noise in gradients takes more than another (first/ against plain/, and squares/) with the passes of one micro-batch of 4 sequences of
// 64 tokens, of a GPT-2 of 4 million parameters, on the fastest device of this build.
func BenchmarkSquares(b *testing.B) {
	m, err := model.Build("gpt2", map[string]any{"n_layer": 4, "n_head": 4, "n_embd": 256, "n_positions": 64, "vocab_size": 2000})
	if err != nil {
		b.Fatal(err)
	}
	dev, _, err := pick.Open("cpu", pick.Config{})
	if err != nil {
		b.Fatal(err)
	}
	s, err := stage.New(stage.Config{Device: dev, Model: m, Samples: 4, Slots: 1})
	if err != nil {
		b.Fatal(err)
	}
	input, labels := stage.NewBoundary(s.Shape().InputBytes), stage.NewBoundary(s.Shape().LabelBytes)
	for i := range device.Values[int32](labels) {
		device.Values[int32](input)[i], device.Values[int32](labels)[i] = int32(i%1999), int32((i+1)%1999)
	}
	passes := func(squares bool) error {
		micro := stage.Micro{Weight: 1, Squares: squares}
		s.ZeroGradients()
		if err := s.Forward(micro, stage.OnHost(input), labels, stage.Boundary{}); err != nil {
			return err
		}
		return s.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{})
	}
	timeEach(b, "", map[string]func() error{
		"plain":   func() error { return passes(false) },
		"first":   func() error { return passes(true) },
		"squares": func() error { _, _, err := s.Squares(); return err },
	})
	closeBoth(b, s, dev)
}
