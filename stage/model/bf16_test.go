package model_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

func TestCheckComputeNamesTheFamiliesThatCan(t *testing.T) {
	can := []string{"bert", "gpt2", "llama", "mistral", "mlp", "qwen2"}
	for _, name := range model.Families() {
		m, err := model.Build(name, map[string]any{})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.CheckCompute(device.F32); err != nil {
			t.Errorf("%s in f32: %v", name, err)
		}
		err = m.CheckCompute(device.BF16)
		if slices.Contains(can, name) {
			if err != nil {
				t.Errorf("%s in bf16: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "family "+name+" computes in f32 only, not in bf16") || !strings.Contains(err.Error(), strings.Join(can, " ")) {
			t.Errorf("%s in bf16: error %v, want it to name %v", name, err, can)
		}
	}
}

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
		if err := s.Forward(micro, buffers[k], labels, buffers[k+1]); err != nil {
			t.Fatal(err)
		}
	}
	var dout []byte
	for k, s := range slices.Backward(stages) {
		din := stage.NewBoundary(s.Shape().InputBytes)
		if k == 0 {
			din = nil
		}
		if err := s.Backward(micro, stage.Whole, dout, din); err != nil {
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
		if m.CheckCompute(device.BF16) != nil {
			continue
		}
		for i, l := range m.Layers {
			p := layer.Alone(m.Layers, i, layer.Size{B: 2, T: m.Sequence(), Compute: device.BF16})
			for _, op := range slices.Concat(p.Forward.Ops(), p.Whole.Ops()) {
				if o, ok := op.(*device.Add); ok && o.A.Type() == device.BF16 && o.B.Type() == device.BF16 {
					t.Errorf("%s: layer %s adds %v to %v", name, l.Name(), o.A.Type(), o.B.Type())
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
		if m.CheckCompute(device.BF16) != nil {
			continue
		}
		products := 0
		for i, l := range m.Layers {
			p := layer.Alone(m.Layers, i, layer.Size{B: 2, T: m.Sequence(), Compute: device.BF16})
			for _, op := range slices.Concat(p.Forward.Ops(), p.Whole.Ops()) {
				o, ok := op.(*device.MatMul)
				if !ok {
					continue
				}
				products++
				if o.A.Type() != device.BF16 || o.B.Type() != device.BF16 {
					t.Fatalf("%s: layer %s multiplies %v by %v", name, l.Name(), o.A.Type(), o.B.Type())
				}
			}
		}
		if products == 0 {
			t.Errorf("%s has no products", name)
		}
	}
}
