package layer_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// layers is every layer and composition of this package; width 12, 3 heads.
func layers() map[string]layer.Layer {
	linear := func(path string, in, out int) layer.Linear {
		return layer.Linear{Path: path, In: in, Out: out, Bias: true}
	}
	norm := func(path string) layer.LayerNorm { return layer.LayerNorm{Path: path, Width: 12, Epsilon: 1e-5} }
	attention := func() *layer.SelfAttention {
		return &layer.SelfAttention{Path: "attn", Heads: 3, QKV: []layer.Linear{linear("attn.qkv", 12, 36)}, Project: linear("attn.project", 12, 12)}
	}
	mlp := func() layer.Layer {
		return layer.NewChain("mlp", linear("mlp.up", 12, 20), layer.NewActivation("mlp.act", device.GELU, 20), linear("mlp.down", 20, 12))
	}
	return map[string]layer.Layer{
		"embedding": layer.Embedding{
			Path: "embedding", Tokens: layer.Table{Path: "wte", Rows: 9}, Positions: layer.Table{Path: "wpe", Rows: 8}, Width: 12,
		},
		"linear":         linear("linear", 12, 7),
		"linear no bias": layer.Linear{Path: "linear", In: 12, Out: 7},
		"linear out-in":  layer.Linear{Path: "linear", In: 12, Out: 7, Bias: true, OutIn: true},
		"adapter":        layer.Linear{Path: "linear", In: 12, Out: 7, Bias: true, Adapter: &layer.Adapter{Rank: 3, Scale: 2}},
		"adapter that drops": layer.Linear{
			Path: "linear", In: 12, Out: 7, OutIn: true, Adapter: &layer.Adapter{Rank: 5, Scale: 0.5, Rate: 0.3},
		},
		"adapters of an mlp": layer.Adapt(mlp(), func(l layer.Linear) layer.Linear {
			l.Adapter = &layer.Adapter{Rank: 2, Scale: 1}
			return l
		}),
		"norm":      norm("norm"),
		"gelu":      layer.NewActivation("gelu", device.GELU, 12),
		"attention": attention(),
		"mlp":       mlp(),
		"residual":  layer.NewResidual(linear("linear", 12, 12)),
		"chain of in-place layers": layer.NewChain("chain",
			linear("a", 12, 8), layer.NewActivation("b", device.GELU, 8), layer.NewActivation("c", device.GELU, 8), linear("d", 8, 12)),
		"chain that begins and ends in place": layer.NewChain("chain",
			layer.NewActivation("a", device.GELU, 12), linear("b", 12, 12), layer.NewActivation("c", device.GELU, 12)),
		"block": layer.NewChain("block", layer.NewResidual(layer.NewChain("attn", norm("block.norm1"), attention())), layer.NewResidual(layer.NewChain("mlp", norm("block.norm2"), mlp()))),
		"head":  layer.NewChain("head", norm("head.norm"), layer.Linear{Path: "head.logits", In: 12, Out: 9, OutIn: true}),
	}
}

func TestGradientsOfEveryLayer(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for name, l := range layers() {
			t.Run(name, func(t *testing.T) {
				stagetest.Gradient(t, dev, l, layer.Size{B: 2, T: 5}, nil)
			})
		}
	})
}

// wrong is a layer with something before its backward, or in its place, and something after it.
type wrong struct {
	layer.Layer
	before, after func(b *layer.Builder, t layer.Tensors, dout, din []device.Mem)
	without       bool
}

func (w wrong) Emit(b *layer.Builder, t layer.Tensors, in []device.Mem) (out []device.Mem, backward layer.Backward) {
	out, back := w.Layer.Emit(b, t, in)
	return out, func(dout []device.Mem) []device.Mem {
		if w.before != nil {
			w.before(b, t, dout, nil)
		}
		din := dout
		if !w.without {
			din = back(dout)
		}
		if w.after != nil {
			w.after(b, t, dout, din)
		}
		return din
	}
}

func TestGradientCheckCatchesWrongBackwards(t *testing.T) {
	all := layers()
	linear, norm, block := layer.Linear{Path: "linear", In: 12, Out: 12, Bias: true}, all["norm"], all["block"]
	for name, l := range map[string]layer.Layer{
		"a forgotten branch": wrong{Layer: all["residual"], without: true},
		"an input gradient 1% too large": wrong{Layer: norm, after: func(b *layer.Builder, _ layer.Tensors, _, din []device.Mem) {
			b.Do(&device.Scale{X: din[0], A: 1.01})
		}},
		"a weight gradient that is overwritten": wrong{Layer: norm, before: func(b *layer.Builder, t layer.Tensors, _, _ []device.Mem) {
			b.Do(&device.Zero{X: t.Grads[0]})
		}},
		"a gradient of a bias 1% too large": wrong{Layer: block, after: func(b *layer.Builder, t layer.Tensors, _, _ []device.Mem) {
			b.Do(&device.Scale{X: t.Grads[1], A: 1.01})
		}},
		"a weight gradient added to what was there before the batch": wrong{
			Layer: linear, after: func(b *layer.Builder, t layer.Tensors, _, _ []device.Mem) {
				b.Do(&device.Axpy{Y: t.Grads[0], A: 0.01, X: t.Grads[0]})
			},
		},
		"a clobbered output gradient": wrong{Layer: all["gelu"], after: func(b *layer.Builder, _ layer.Tensors, dout, _ []device.Mem) {
			b.Do(&device.Scale{X: dout[0], A: 2})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := stagetest.CheckGradient(ref.New(), l, layer.Size{B: 2, T: 5}, nil); err == nil {
				t.Error("the gradient check passed")
			}
		})
	}
}
