package layer_test

import (
	"math"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// transformers is every layer and composition that LLaMA and BERT add; width 12, inner width 20, 4 heads of 4 elements.
func transformers() map[string]layer.Layer {
	linear := func(path string, in, out int, bias bool) layer.Linear {
		return layer.Linear{Path: path, In: in, Out: out, OutIn: true, Bias: bias}
	}
	rms := func(path string) layer.Layer { return layer.LayerNorm{RMS: true, Path: path, Width: 12, Epsilon: 1e-6} }
	norm := layer.LayerNorm{Path: "norm", Width: 12, Epsilon: 1e-12}
	grouped := func(change func(l *layer.SelfAttention)) *layer.SelfAttention {
		l := &layer.SelfAttention{Path: "attn", Heads: 4, KV: 2, Theta: 100}
		l.QKV = []layer.Linear{linear("q", 12, 16, false), linear("k", 12, 8, true), linear("v", 12, 8, false)}
		l.Project = linear("o", 16, 12, true)
		change(l)
		return l
	}
	// Without rotation the gradient of a key's bias is 0: the softmax does not see it. What is left is rounding.
	unturned := func(l *layer.SelfAttention) { l.Theta, l.QKV[1].Bias = 0, false }
	masked := func(l *layer.SelfAttention) {
		unturned(l)
		l.Bidirectional, l.Masked = true, true
	}
	mlp := layer.NewChain("mlp", linear("up", 12, 20, true), layer.NewActivation("act", device.GELUErf, 20), linear("down", 20, 12, true))
	gated := &layer.GatedMLP{Path: "mlp", Gate: linear("gate", 12, 20, true), Up: linear("up", 12, 20, false), Down: linear("down", 20, 12, true)}
	attention := layer.NewPostNorm(layer.NewDropout(grouped(masked), 0.1), norm)
	bert := layer.NewChain("block", attention, layer.NewPostNorm(layer.NewDropout(mlp, 0.2), layer.LayerNorm{Path: "norm2", Width: 12, Epsilon: 1e-12}))
	typed := layer.Embedding{
		Path: "embedding", Tokens: layer.Table{Path: "word", Rows: 9}, Positions: layer.Table{Path: "position", Rows: 8},
		Types: layer.Table{Path: "type", Rows: 2}, Width: 12,
	}
	return map[string]layer.Layer{
		"rms norm":               rms("norm"),
		"exact gelu":             layer.NewActivation("gelu", device.GELUErf, 12),
		"tanh":                   layer.NewActivation("tanh", device.Tanh, 12),
		"gated mlp":              gated,
		"dropout":                layer.NewDropout(linear("linear", 12, 7, true), 0.3),
		"attention with dropout": grouped(func(l *layer.SelfAttention) { l.Rate = 0.3 }),
		"grouped attention":      grouped(func(*layer.SelfAttention) {}),
		"wide heads, no rotation": grouped(func(l *layer.SelfAttention) {
			unturned(l)
			l.Heads, l.KV = 2, 1
		}),
		"attention in a window":     grouped(func(l *layer.SelfAttention) { l.Window = 3 }),
		"masked attention":          grouped(masked),
		"post-norm":                 layer.NewPostNorm(mlp, norm),
		"post-norm masked":          attention,
		"token embedding":           layer.Embedding{Path: "tokens", Tokens: layer.Table{Path: "tokens", Rows: 9}, Width: 12},
		"typed embedding":           typed,
		"typed embedding with mask": layer.PassMask{Layer: layer.NewDropout(layer.NewChain("embeddings", typed, norm), 0.1)},
		"bert block":                bert,
		"bert block with mask":      layer.PassMask{Layer: bert},
		"pooler": layer.NewFirst(layer.NewChain("pooler",
			linear("dense", 12, 12, true), layer.NewActivation("act", device.Tanh, 12), linear("classifier", 12, 3, true))),
		"interleaved attention with dropout": &layer.SelfAttention{
			Path: "attn", Heads: 3, QKV: []layer.Linear{linear("qkv", 12, 36, true)}, Project: linear("o", 12, 12, true), Rate: 0.2,
		},
		"llama block": layer.NewChain("block",
			layer.NewResidual(layer.NewChain("attn", rms("norm1"), grouped(func(l *layer.SelfAttention) { l.KV = 1; l.QKV[1].Out, l.QKV[2].Out = 4, 4 }))),
			layer.NewResidual(layer.NewDropout(layer.NewChain("mlp", rms("norm2"), gated), 0.2))),
	}
}

func TestGradientsOfTransformerLayers(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for name, l := range transformers() {
			t.Run(name, func(t *testing.T) { stagetest.Gradient(t, dev, l, layer.Size{B: 2, T: 5}, nil) })
		}
	})
}

// forward runs a layer on samples of 3 positions on ref and returns its output.
func forward(t *testing.T, l layer.Layer, samples int, args device.Args, evaluate bool, in []float32) []float32 {
	t.Helper()
	r, err := stagetest.NewRunner(ref.New(), l, layer.Size{B: samples, T: 3})
	if err != nil {
		t.Fatal(err)
	}
	r.Args = args
	copy(r.In[0].F32(), in)
	for i, m := range r.Params {
		for j := range m.F32() {
			m.F32()[j] = float32((i+3*j)%7) - 2.5
		}
	}
	if evaluate {
		r.Evaluate()
	} else {
		r.Forward()
	}
	return slices.Clone(r.Out[0].F32())
}

func TestDropoutDependsOnTheSampleNotOnTheMicroBatch(t *testing.T) {
	const n = 3 * 4 // of a sample
	linear := layer.Linear{Path: "linear", In: 4, Out: 4, Bias: true}
	l := layer.NewDropout(linear, 0.5)
	in := make([]float32, 2*n)
	for i := range in {
		in[i] = 1 + float32(i%n)
	}
	step := device.Args{Key: 5}
	batch := forward(t, l, 2, step, false, in)
	second := forward(t, l, 1, device.Args{Key: 5, First: 1}, false, in[n:])
	if !slices.Equal(batch[n:], second) {
		t.Error("the second sample is dropped otherwise when it is alone in its micro-batch")
	}
	if slices.Equal(batch[:n], batch[n:]) {
		t.Error("two equal samples share a mask")
	}
	if slices.Equal(batch, forward(t, l, 2, device.Args{Key: 6}, false, in)) {
		t.Error("another step draws the same mask")
	}
	if slices.Equal(batch, forward(t, layer.NewDropout(layer.Linear{Path: "other", In: 4, Out: 4, Bias: true}, 0.5), 2, step, false, in)) {
		t.Error("another layer draws the same mask")
	}
	whole := forward(t, linear, 2, step, false, in)
	if !slices.Equal(whole, forward(t, l, 2, step, true, in)) {
		t.Error("an evaluation drops elements")
	}
	for i, v := range batch {
		if v != 0 && v != 2*whole[i] {
			t.Errorf("element %d is %v, of %v: expected 0 or its double", i, v, whole[i])
		}
	}
}

// passes runs a layer forward and backward on dev, products computing in t, and returns its output and the gradients of its
// input and of its parameters, in F32. Inputs and parameters are those of BF16 whatever t is.
func passes(t *testing.T, dev device.Device, l layer.Layer, compute device.Type) [][]float32 {
	t.Helper()
	size := layer.Size{B: 2, T: 5, Compute: compute}
	r, err := stagetest.NewRunner(dev, l, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	alloc := func(n int) device.Mem {
		m, err := dev.Alloc(device.F32, n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Free(m) })
		return m
	}
	seed := 0
	fill := func(m device.Mem, mean, size float64) {
		seed++
		wide, values := alloc(m.Len()), make([]float32, m.Len())
		for i := range values {
			v := float32(mean + size*math.Sin(float64(17*seed+i*i)))
			values[i] = flat.WidenBF16(flat.RoundBF16(v))
		}
		stagetest.Put(t, dev, wide, values)
		dev.Do(&device.Copy{Y: m, X: wide})
	}
	in, _ := layer.Ports(l, size)
	for i, port := range in {
		if port.Type != device.I32 {
			fill(r.In[i], 0, 1)
			continue
		}
		ids := make([]int32, r.In[i].Len())
		for j := range ids {
			ids[j] = int32((j + 1) % port.Limit)
		}
		if err := device.Write(dev, r.In[i], device.IntBytes(ids)); err != nil {
			t.Fatal(err)
		}
	}
	fill(r.DOut[0], 0, 1)
	for i, param := range layer.Params(l) {
		fill(r.Params[i], param.Init.Mean, 0.3)
	}
	r.Forward()
	r.Backward()
	results := append([]device.Mem{r.Out[0]}, r.Grads...)
	if in[0].Differentiable() {
		results = append(results, r.DIn[0])
	}
	var values [][]float32
	for _, m := range results {
		wide := alloc(m.Len())
		dev.Do(&device.Copy{Y: wide, X: m})
		values = append(values, stagetest.Get(t, dev, wide))
	}
	return values
}

// TestTransformerLayersComputeInBF16 within a few roundings of 2^-9 of what they compute in F32.
func TestTransformerLayersComputeInBF16(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for name, l := range transformers() {
			t.Run(name, func(t *testing.T) {
				want, got := passes(t, dev, l, device.F32), passes(t, dev, l, device.BF16)
				for i := range want {
					var off, size float64
					for j, w := range want[i] {
						d := float64(got[i][j]) - float64(w)
						off, size = off+d*d, size+float64(w)*float64(w)
					}
					if e := math.Sqrt(off / size); !(e < 0.03) {
						t.Errorf("result %d is off by %.2g of its size", i, e)
					}
				}
			})
		}
	})
}
