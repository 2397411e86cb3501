package layer_test

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// torchCase is a layer and the module of PyTorch that computes the same.
type torchCase struct {
	layer  layer.Layer
	size   layer.Size
	kind   string // in testdata/torch_layers.py
	args   map[string]any
	shapes [2][]int // of the input and of the output
}

const torchWidth, torchHeads, torchInner = 12, 3, 20

func torchLinear(path string, in, out int, outIn bool) layer.Linear {
	return layer.Linear{Path: path, In: in, Out: out, Bias: true, OutIn: outIn}
}

// torchAttention is attention to all positions with three projections, or causal with one.
func torchAttention(causal bool, rate float64) layer.Layer {
	const d = torchWidth
	if causal {
		return &layer.SelfAttention{
			Path: "attention", Heads: torchHeads, QKV: []layer.Linear{torchLinear("qkv", d, 3*d, false)}, Project: torchLinear("project", d, d, false),
			Rate: rate,
		}
	}
	return &layer.SelfAttention{
		Path: "attention", Heads: torchHeads, KV: torchHeads, Bidirectional: true, Rate: rate,
		QKV:     []layer.Linear{torchLinear("q", d, d, true), torchLinear("k", d, d, true), torchLinear("v", d, d, true)},
		Project: torchLinear("project", d, d, true),
	}
}

// torchBlock is a transformer block of the layers that models are made of.
func torchBlock(normFirst, causal bool, act string, rate float64) layer.Layer {
	const d = torchWidth
	activation := map[string]layer.Layer{
		"relu": layer.NewActivation("act", device.ReLU, torchInner), "gelu": layer.NewActivation("act", device.GELUErf, torchInner),
		"gelu_new": layer.NewActivation("act", device.GELU, torchInner),
	}[act]
	norm := func(path string) layer.LayerNorm { return layer.LayerNorm{Path: path, Width: d, Epsilon: 1e-5} }
	attention := torchAttention(causal, rate)
	mlp := layer.NewChain("mlp", torchLinear("up", d, torchInner, true), activation, torchLinear("down", torchInner, d, true))
	if normFirst {
		return layer.NewChain("block",
			layer.NewResidual(layer.NewDropout(layer.NewChain("first", norm("norm1"), attention), rate)),
			layer.NewResidual(layer.NewDropout(layer.NewChain("second", norm("norm2"), mlp), rate)))
	}
	return layer.NewChain("block", layer.NewPostNorm(layer.NewDropout(attention, rate), norm("norm1")),
		layer.NewPostNorm(layer.NewDropout(mlp, rate), norm("norm2")))
}

// torchCases is every layer that PyTorch has a module for.
func torchCases() map[string]torchCase {
	cases := map[string]torchCase{}
	for name, both := range map[string]bool{"lstm of 3 layers": false, "lstm of 2 layers both ways": true} {
		const b, t, in, hidden = 3, 5, 6, 7
		layers, width := []layer.Layer{}, in
		for i := range map[bool]int{false: 3, true: 2}[both] {
			l := layer.LSTM{Path: "l" + string(rune('0'+i)), In: width, Hidden: hidden, Bidirectional: both}
			layers, width = append(layers, l), l.Width()
		}
		cases[name] = torchCase{
			layer.NewChain("lstm", layers...),
			layer.Size{B: b, T: t},
			"lstm",
			map[string]any{"in": in, "hidden": hidden, "layers": len(layers), "bidirectional": both},
			[2][]int{{b, t, in}, {b, t, width}},
		}
	}
	const b, t = 2, 7
	add := func(name, kind string, l layer.Layer, args map[string]any) {
		args["width"], args["heads"], args["inner"] = torchWidth, torchHeads, torchInner
		cases[name] = torchCase{l, layer.Size{B: b, T: t}, kind, args, [2][]int{{b, t, torchWidth}, {b, t, torchWidth}}}
	}
	for name, rate := range map[string]float64{"": 0, " with dropout": 0.3} {
		add("causal attention"+name, "attention", torchAttention(true, rate), map[string]any{"causal": true, "rate": rate})
		add("attention"+name, "attention", torchAttention(false, rate), map[string]any{"causal": false, "rate": rate})
		for _, act := range []string{"relu", "gelu", "gelu_new"} {
			for norm, first := range map[string]bool{"pre-norm": true, "post-norm": false} {
				add(norm+" encoder, "+act+name, "encoder", torchBlock(first, first, act, rate),
					map[string]any{"norm_first": first, "causal": first, "act": act, "rate": rate})
			}
		}
	}
	addTorchImages(cases)
	return cases
}

func addTorchImages(cases map[string]torchCase) {
	const b = 3
	of := layer.Image{Height: 6, Width: 5, Channels: 4}
	add := func(name, kind string, l layer.Layer, out layer.Image, args map[string]any) {
		shape := func(i layer.Image) []int { return []int{b, i.Height, i.Width, i.Channels} }
		cases[name] = torchCase{l, layer.Size{B: b, T: 1}, kind, args, [2][]int{shape(of), shape(out)}}
	}
	for name, c := range map[string]layer.Convolution{
		"convolution":          {Path: "conv", Of: of, Out: 6, Kernel: 3, Stride: 1, Padding: 1, Bias: true},
		"convolution, strided": {Path: "conv", Of: of, Out: 5, Kernel: 3, Stride: 2, Padding: 1},
		"convolution of 1":     {Path: "conv", Of: of, Out: 3, Kernel: 1, Stride: 2},
	} {
		add(name, "conv", c, c.Output(), map[string]any{
			"in": of.Channels, "out": c.Out, "kernel": c.Kernel, "stride": c.Stride, "padding": c.Padding, "bias": c.Bias,
		})
	}
	add("batch norm", "batchnorm", layer.ImageNorm{Path: "norm", Of: of, Epsilon: 1e-5, Momentum: 0.1}, of, map[string]any{"channels": of.Channels})
	add("group norm", "groupnorm", layer.ImageNorm{Path: "norm", Of: of, Epsilon: 1e-5, Groups: 2}, of, map[string]any{"channels": of.Channels, "groups": 2})
	pool, to := layer.NewMaxPool("pool", of, 3, 2, 1)
	add("max pool", "maxpool", pool, to, map[string]any{"kernel": 3, "stride": 2, "padding": 1})
}

type torchTensor struct {
	Shape  []int     `json:"shape"`
	Values []float32 `json:"values"`
}

// torchQuestion and torchAnswer are what testdata/torch_layers.py reads and writes.
type torchQuestion struct {
	Kind   string                 `json:"kind"`
	Args   map[string]any         `json:"args"`
	In     torchTensor            `json:"in"`
	DOut   torchTensor            `json:"dout"`
	Params map[string]torchTensor `json:"params"`
	Masks  [][]float32            `json:"masks"`
}

type torchAnswer struct {
	Out   []float64            `json:"out"`
	DIn   []float64            `json:"din"`
	Grads map[string][]float64 `json:"grads"`
}

// TestLayersAreThoseOfPyTorch holds output, gradient of the input and gradients of all parameters against PyTorch's own modules.
func TestLayersAreThoseOfPyTorch(t *testing.T) {
	cases, random := torchCases(), rand.New(rand.NewPCG(3, 4))
	fill := func(deviation float64, shape ...int) torchTensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := torchTensor{shape, make([]float32, n)}
		for i := range x.Values {
			x.Values[i] = float32(deviation * random.NormFloat64())
		}
		return x
	}
	var questions []torchQuestion
	names := slices.Sorted(maps.Keys(cases))
	for _, name := range names {
		c := cases[name]
		q := torchQuestion{c.kind, c.args, fill(1, c.shapes[0]...), fill(1, c.shapes[1]...), map[string]torchTensor{}, nil}
		for _, p := range layer.Params(c.layer) {
			q.Params[p.Name] = fill(0.4, p.Shape...) // larger ones saturate the softmax, and rounding grows
		}
		masks := stagetest.NewMasks(ref.New())
		q.pass(t, masks, c)
		q.Masks = masks.Drawn
		questions = append(questions, q)
	}
	var answers []torchAnswer
	stagetest.PyTorch(t, "testdata/torch_layers.py", questions, &answers)
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for i, name := range names {
			t.Run(name, func(t *testing.T) { compareWithTorch(t, questions[i].pass(t, dev, cases[name]), answers[i]) })
		}
	})
}

// pass is the question's on a device of ours.
func (q torchQuestion) pass(t *testing.T, dev device.Device, c torchCase) *stagetest.LayerPass {
	t.Helper()
	pass := &stagetest.LayerPass{In: q.In.Values, DOut: q.DOut.Values, Params: map[string][]float32{}}
	for name, x := range q.Params {
		pass.Params[name] = x.Values
	}
	pass.Run(t, dev, c.layer, c.size)
	return pass
}

// compareWithTorch allows each tensor a distance of 1e-5 of its length: float32 rounds by 6e-8, a hundred times or so in these layers.
func compareWithTorch(t *testing.T, found *stagetest.LayerPass, want torchAnswer) {
	t.Helper()
	const tolerance = 1e-5
	worst := 0.0
	compare := func(name string, found []float32, want []float64) {
		var off, size float64
		for i, w := range want {
			off, size = off+(float64(found[i])-w)*(float64(found[i])-w), size+w*w
		}
		e := math.Sqrt(off / max(size, 1)) // the gradient of a key's bias is 0
		worst = max(worst, e)
		if len(found) != len(want) || !(e <= tolerance) {
			t.Errorf("%s: relative error %.3g, tolerance %.1g", name, e, tolerance)
		}
	}
	compare("output", found.Out, want.Out)
	compare("gradient of the input", found.DIn, want.DIn)
	for name, g := range found.Grads {
		compare("gradient of "+name, g, want.Grads[name])
	}
	t.Logf("largest relative error %.2g, tolerance %.1g", worst, tolerance)
}
