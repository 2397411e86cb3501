package model_test

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// gradientsOf runs one micro-batch through stages of one unit each, so that every boundary is crossed.
func gradientsOf(t *testing.T, m *model.Model, compute device.Type) (loss float64, gradients []float32) {
	t.Helper()
	const samples = 6
	n := len(m.Layers)
	stages, buffers := make([]*stage.Computed, n), make([][]byte, n+1)
	for k := range stages {
		s, err := stage.New(stage.Config{
			Device: ref.New(), Model: m, Range: stage.Range{From: k, To: k + 1}, Index: k, Count: n, Samples: samples, Slots: 1, Seed: 3, Compute: compute,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		stages[k], buffers[k], buffers[k+1] = s, stage.NewBoundary(s.Shape().InputBytes), stage.NewBoundary(s.Shape().OutputBytes)
	}
	pixels := make([]float32, len(buffers[0])/4)
	for i := range pixels {
		pixels[i] = float32(math.Sin(float64(i * i)))
	}
	copy(buffers[0], device.FloatBytes(pixels))
	labels := stage.NewBoundary(stages[n-1].Shape().LabelBytes)
	copy(labels, device.IntBytes([]int32{0, 3, 1, 4, 2, 1}))
	micro := stage.Micro{Weight: 1}
	for k, s := range stages {
		if k == n-1 {
			buffers[n] = nil
		}
		if err := s.Forward(micro, stage.OnHost(buffers[k]), labels, stage.OnHost(buffers[k+1])); err != nil {
			t.Fatal(err)
		}
	}
	var dout []byte
	for k, s := range slices.Backward(stages) {
		din := stage.NewBoundary(s.Shape().InputBytes)
		if k == 0 {
			din = nil
		}
		if err := s.Backward(micro, stage.Whole, stage.OnHost(dout), stage.OnHost(din)); err != nil {
			t.Fatal(err)
		}
		dout = din
		part := make([]float32, s.Gradients().Len())
		s.Gradients().Read(part, 0)
		gradients = append(gradients, part...)
	}
	loss, err := stages[n-1].Loss()
	if err != nil {
		t.Fatal(err)
	}
	return loss, gradients
}

func TestAnMLPComputesInBF16NearlyWhatItDoesInF32(t *testing.T) {
	const tolerance = 0.03 // of the gradient's length: bf16 has 8 bits
	for _, act := range []string{"relu", "gelu", "gelu_new"} {
		for _, dropout := range []float64{0, 0.3} {
			m, err := model.Build("mlp", map[string]any{
				"image_size": 5, "hidden_sizes": []any{24, 16}, "num_labels": 5, "hidden_act": act, "dropout": dropout,
			})
			if err != nil {
				t.Fatal(err)
			}
			a, exact := gradientsOf(t, m, device.F32)
			b, rounded := gradientsOf(t, m, device.BF16)
			var off, size float64
			for i, g := range exact {
				d := float64(rounded[i] - g)
				off, size = off+d*d, size+float64(g)*float64(g)
			}
			e := math.Sqrt(off / size)
			t.Logf("%s, dropout %v: loss %.5f in f32, %.5f in bf16; gradients off by %.2g of their length, tolerance %v", act, dropout, a, b, e, tolerance)
			if !(e > 0 && e < tolerance) || !(math.Abs(a-b) < 0.01*a) {
				t.Errorf("%s, dropout %v: loss %v in bf16, %v in f32; gradients are off by %.2g of their length", act, dropout, b, a, e)
			}
		}
	}
}

// A sum of two numbers in bf16 has been rounded twice too often: once for each, before it is rounded itself.
func TestNothingAddsBF16ToBF16(t *testing.T) {
	for _, name := range model.Families() {
		m, err := model.Build(name, map[string]any{})
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range m.Layers {
			p := layer.Alone(m.Layers, i, layer.Size{B: 2, T: m.Sequence(), Compute: device.BF16})
			for _, op := range slices.Concat(p.Forward.Ops(), p.Whole.Ops()) {
				if o, ok := op.(*device.Add); ok && o.A.Type() == device.BF16 && o.B.Type() == device.BF16 {
					t.Errorf("%s: layer %s adds %v to %v", name, layer.Name(l), o.A.Type(), o.B.Type())
				}
			}
		}
	}
}

// Units for bf16 take both operands in bf16: a product of mixed operands computes in f32, at half their speed.
func TestProductsTakeBothOperandsInBF16(t *testing.T) {
	for _, name := range model.Families() {
		m, err := model.Build(name, map[string]any{})
		if err != nil {
			t.Fatal(err)
		}
		products := 0
		for i, l := range m.Layers {
			p := layer.Alone(m.Layers, i, layer.Size{B: 2, T: m.Sequence(), Compute: device.BF16})
			for _, op := range slices.Concat(p.Forward.Ops(), p.Whole.Ops()) {
				a, b, is := multiplied(op)
				if !is {
					continue
				}
				products++
				if a.Type() != device.BF16 || b.Type() != device.BF16 {
					t.Fatalf("%s: layer %s multiplies %v by %v in a %T", name, layer.Name(l), a.Type(), b.Type(), op)
				}
			}
		}
		if products == 0 {
			t.Errorf("%s has no products", name)
		}
	}
}

// multiplied are the operands of a product; what recurrent products multiply their weights by is rounded to the type of these.
func multiplied(op device.Op) (a, b device.Mem, is bool) {
	switch o := op.(type) {
	case *device.MatMul:
		return o.A, o.B, true
	case *device.Convolution:
		return o.X, o.Weight, true
	case *device.ConvolutionBackward:
		return o.DY, o.Weight, true
	case *device.ConvolutionBackwardWeight:
		return o.DY, o.X, true
	case *device.LSTM:
		return o.Previous, o.Weight, true
	case *device.LSTMBackward:
		return o.Weight, o.Weight, true
	}
	return a, b, false
}

// TestEveryFamilyTrainsInBF16AlmostAsInF32 fits a batch: the mean loss of all steps, of which the last ones know most of it, is nearly the same.
func TestEveryFamilyTrainsInBF16AlmostAsInF32(t *testing.T) {
	const steps = 60
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for _, name := range slices.Sorted(maps.Keys(torchModels)) {
			of := torchModels[name]
			config := maps.Clone(of.config)
			for rate := range of.rates {
				config[rate] = 0.0
			}
			c := torchComparison{torchQuestion: newTorchQuestion(t, of.family, config, rand.New(rand.NewPCG(7, 8)))}
			train := func(compute device.Type) (mean, last float64) {
				p := c.pipeline(t, dev, 2, c.micros(), stage.Optimizer{Name: "adamw"}, compute)
				for range steps {
					loss, squared, err := p.Run(c.batch)
					if err != nil {
						t.Fatal(err)
					}
					if err := p.Update(0.01, squared, 0); err != nil {
						t.Fatal(err)
					}
					mean, last = mean+loss/steps, loss
				}
				return mean, last
			}
			tolerance := 0.008
			if c.model.Task == model.Images { // ReLUs and pools have kinks
				tolerance = 0.02
			}
			wide, end := train(device.F32)
			rounded, _ := train(device.BF16)
			off := math.Abs(rounded-wide) / wide
			t.Logf("%s: mean loss %.4f in f32, which ends at %.3f, %.4f in bf16: %.2g of it apart, tolerance %.2g", name, wide, end, rounded, off, tolerance)
			if !(off > 0 && off < tolerance && end < 0.85*wide) {
				t.Errorf("%s: mean loss %v in f32, which ends at %v, %v in bf16", name, wide, end, rounded)
			}
		}
	})
}
