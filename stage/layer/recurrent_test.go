package layer_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// recurrents is every layer of recurrent models, in all its forms.
func recurrents() map[string]layer.Layer {
	x := layer.Stream{Name: "x", Width: 6}
	mask := layer.Stream{Name: "mask", Type: device.I32, Width: 1}
	other := layer.Stream{Name: "other", Width: 5}
	ids := func(name string) layer.Stream { return layer.Stream{Name: name, Type: device.I32, Width: 1, Limit: 9} }
	return map[string]layer.Layer{
		"lstm":               layer.LSTM{Path: "lstm", In: 6, Hidden: 7},
		"lstm both ways":     layer.LSTM{Path: "lstm", In: 6, Hidden: 5, Bidirectional: true},
		"lstm, weights drop": layer.LSTM{Path: "lstm", In: 6, Hidden: 5, Bidirectional: true, WeightDrop: 0.5},
		"variational dropout": layer.NewChain("chain", layer.Linear{Path: "linear", In: 6, Out: 7},
			layer.VariationalDropout{Path: "drop", Width: 7, Rate: 0.5}),
		"word embedding": layer.Embedding{Path: "embedding", Tokens: layer.Table{Path: "encoder", Rows: 9}, Width: 6, Drop: 0.4},
		"masked, both ways, passing": &layer.Recurrence{
			LSTM: layer.LSTM{Path: "r", In: 6, Hidden: 4, Bidirectional: true}, Dropout: 0.3,
			In: []layer.Stream{x, mask, other}, Mask: 1, Passed: []int{1, 2},
		},
		"residual": &layer.Recurrence{
			LSTM: layer.LSTM{Path: "r", In: 6, Hidden: 6}, Residual: true, In: []layer.Stream{x, mask, other}, Passed: []int{2},
		},
		"joined, passing it on": &layer.Recurrence{
			LSTM: layer.LSTM{Path: "r", In: 11, Hidden: 6}, Dropout: 0.3, Residual: true,
			In: []layer.Stream{x, other}, Joined: 1, Passed: []int{1},
		},
		"joined, the last": &layer.Recurrence{
			LSTM: layer.LSTM{Path: "r", In: 11, Hidden: 6}, Residual: true, In: []layer.Stream{x, other}, Joined: 1,
		},
		"attending":               attending(0),
		"attending, with dropout": attending(0.3),
		"lookup of two": &layer.Lookup{
			Path: "embedder", Vocabulary: 9, Width: 6, In: []layer.Stream{ids("ids"), mask, ids("decoder_ids")},
			Looked: []int{0, 2},
		},
		"lookup beside others": &layer.Lookup{
			Path: "embedder", Vocabulary: 9, Width: 6, In: []layer.Stream{x, mask, ids("decoder_ids")},
			Looked: []int{2},
		},
	}
}

func attending(dropout float64) layer.Layer {
	return &layer.AttendingLSTM{
		Path: "att_rnn", LSTM: layer.LSTM{Path: "att_rnn.rnn", In: 6, Hidden: 7}, Keys: 5, Units: 4, Dropout: dropout,
	}
}

// raggedMask hides the last positions of the first sample.
func raggedMask(dev device.Device) stagetest.Fill {
	return func(port layer.Port, in device.Mem) bool {
		if port.Name != "mask" {
			return false
		}
		mask := make([]int32, in.Len())
		for i := range mask {
			if i != 3 && i != 4 {
				mask[i] = 1
			}
		}
		dev.Upload(in, device.IntBytes(mask))
		return true
	}
}

func TestGradientsOfRecurrentLayers(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for name, l := range recurrents() {
			for _, size := range []layer.Size{{B: 2, T: 5}, {B: 3, T: 1}} {
				t.Run(fmt.Sprintf("%s B=%d T=%d", name, size.B, size.T), func(t *testing.T) {
					stagetest.Gradient(t, dev, l, size, raggedMask(dev))
				})
			}
		}
	})
}

// TestActivationsAreRegularised holds what the layer adds to the gradient against differences of what it says it adds to the
// loss (Merity et al. 2017, section 3).
func TestActivationsAreRegularised(t *testing.T) {
	size := layer.Size{B: 2, T: 4}
	l := layer.VariationalDropout{Path: "drop", Width: 3, Rate: 0.5, Activation: 2, Temporal: 1.5}
	n := size.Rows() * l.Width
	p, err := stagetest.NewRunner(ref.New(), l, size)
	if err != nil {
		t.Fatal(err)
	}
	p.Args = device.Args{Key: 3, Weight: 0.5}
	x := p.In[0].F32()
	for i := range x {
		x[i], p.DOut[0].F32()[i] = float32(math.Sin(float64(i*i))), float32(math.Cos(float64(3*i)))
	}
	loss := func() float64 {
		p.Forward()
		linear, squares, differences := 0.0, 0.0, 0.0
		for i, y := range p.Out[0].F32() {
			linear += float64(y) * float64(p.DOut[0].F32()[i])
			squares += float64(y) * float64(y)
			if next := i + l.Width; next/(size.T*l.Width) == i/(size.T*l.Width) {
				differences += math.Pow(float64(x[next])-float64(x[i]), 2)
			}
		}
		regular := l.Activation*squares/float64(n) + l.Temporal*differences/float64(size.B*(size.T-1)*l.Width)
		return linear + float64(p.Args.Weight)*regular
	}
	p.Forward()
	p.Backward()
	for i, got := range slices.Clone(p.DIn[0].F32()) {
		const h = 1.0 / 64 // the loss is of second order: central differences are exact but for rounding
		before := x[i]
		x[i] = before + h
		above := loss()
		x[i] = before - h
		below := loss()
		x[i] = before
		if want := (above - below) / (2 * h); math.Abs(want-float64(got)) > 1e-4 {
			t.Errorf("gradient %d is %v, differences give %v", i, got, want)
		}
	}
}

// TestWeightsDropOncePerStep runs two micro-batches of one batch: the recurrent weights are the same, so equal samples give
// equal outputs; those of the next step are others.
func TestWeightsDropOncePerStep(t *testing.T) {
	l := layer.LSTM{Path: "lstm", In: 3, Hidden: 8, WeightDrop: 0.5}
	p, err := stagetest.NewRunner(ref.New(), l, layer.Size{B: 1, T: 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range append(p.Params, p.In[0]) {
		for i := range m.F32() {
			m.F32()[i] = float32(math.Sin(float64(7 * i)))
		}
	}
	run := func(key uint64, first int, evaluating bool) []float32 {
		p.Args = device.Args{Key: key, First: first}
		if evaluating {
			p.Evaluate()
		} else {
			p.Forward()
		}
		return slices.Clone(p.Out[0].F32())
	}
	same := func(a, b []float32) bool {
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return true
	}
	step := run(1, 0, false)
	if !same(step, run(1, 5, false)) {
		t.Error("two micro-batches of a step drop different weights")
	}
	if same(step, run(2, 0, false)) || same(step, run(1, 0, true)) {
		t.Error("another step, or an evaluation, drops the same weights")
	}
	if !same(run(1, 0, true), run(2, 0, true)) {
		t.Error("an evaluation drops weights")
	}
}

func TestSmoothedLossIsPlainInEvaluations(t *testing.T) {
	dev := ref.New()
	l := layer.Loss{Classes: 4, Smoothing: 0.2}
	mem := func(typ device.Type, n int) device.Mem {
		m, err := dev.Alloc(typ, n)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	losses, plain, logits, targets := mem(device.F32, 2), mem(device.F32, 2), mem(device.F32, 8), mem(device.I32, 2)
	copy(logits.F32(), []float32{1, 2, 3, 4, -1, 0, 1, 2})
	copy(targets.I32(), []int32{3, -1})
	layer.Loss{Classes: 4}.Compute(dev, plain, device.Mem{}, logits, targets, 0)
	l.Compute(dev, losses, device.Mem{}, logits, targets, 0)
	if losses.F32()[0] != plain.F32()[0] {
		t.Errorf("evaluation: loss %v, want the plain one %v", losses.F32()[0], plain.F32()[0])
	}
	l.Compute(dev, losses, device.Mem{}, logits, targets, 1)
	want := plain.F32()[0] + 0.2*(4-2.5) // the target's logit above the mean one
	if got := losses.F32()[0]; math.Abs(float64(got-want)) > 1e-6 || losses.F32()[1] != 0 {
		t.Errorf("training: losses %v, want %v and 0", losses.F32(), want)
	}
}
