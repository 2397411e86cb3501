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
		return &layer.SelfAttention{Path: "attn", Heads: 3, QKV: linear("attn.qkv", 12, 36), Project: linear("attn.project", 12, 12)}
	}
	mlp := func() layer.Layer { return layer.NewMLP("mlp", linear("mlp.up", 12, 20), linear("mlp.down", 20, 12)) }
	return map[string]layer.Layer{
		"embedding": layer.Embedding{
			Path: "embedding", TokenPath: "wte", PositionPath: "wpe", Vocabulary: 9, MaxT: 8, Width: 12,
		},
		"linear":         linear("linear", 12, 7),
		"linear no bias": layer.Linear{Path: "linear", In: 12, Out: 7},
		"linear out-in":  layer.Linear{Path: "linear", In: 12, Out: 7, Bias: true, OutIn: true},
		"norm":           norm("norm"),
		"gelu":           layer.Activation{Function: device.GELU, Path: "gelu", Width: 12},
		"attention":      attention(),
		"mlp":            mlp(),
		"residual":       layer.NewResidual(linear("linear", 12, 12)),
		"chain of in-place layers": layer.NewChain("chain",
			linear("a", 12, 8), layer.Activation{Function: device.GELU, Path: "b", Width: 8}, layer.Activation{Function: device.GELU, Path: "c", Width: 8}, linear("d", 8, 12)),
		"chain that begins and ends in place": layer.NewChain("chain",
			layer.Activation{Function: device.GELU, Path: "a", Width: 12}, linear("b", 12, 12), layer.Activation{Function: device.GELU, Path: "c", Width: 12}),
		"block": layer.NewBlock("block", norm("block.norm1"), attention(), norm("block.norm2"), mlp()),
		"head":  layer.NewHead("head", norm("head.norm"), layer.Linear{Path: "head.logits", In: 12, Out: 9, OutIn: true}),
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

// wrong is a layer with its backward halves replaced.
type wrong struct {
	layer.Layer
	input, weight func(p layer.Pass)
}

func (w wrong) BackwardInput(p layer.Pass) {
	if w.input != nil {
		w.input(p)
		return
	}
	w.Layer.BackwardInput(p)
}

func (w wrong) BackwardWeight(p layer.Pass) {
	if w.weight != nil {
		w.weight(p)
		return
	}
	w.Layer.BackwardWeight(p)
}

func TestGradientCheckCatchesWrongBackwards(t *testing.T) {
	all := layers()
	linear, norm, block := layer.Linear{Path: "linear", In: 12, Out: 12, Bias: true}, all["norm"], all["block"]
	for name, l := range map[string]layer.Layer{
		"a forgotten skip": wrong{Layer: all["residual"], input: linear.BackwardInput},
		"an input gradient 1% too large": wrong{Layer: norm, input: func(p layer.Pass) {
			norm.BackwardInput(p)
			p.Device.Do(&device.Scale{X: p.DIn, A: 1.01})
		}},
		"a weight gradient that is overwritten": wrong{Layer: linear, weight: func(p layer.Pass) {
			p.Device.Do(&device.Zero{X: p.Grads[0]})
			linear.BackwardWeight(p)
		}},
		"a gradient of one bias left out": wrong{Layer: block, weight: func(p layer.Pass) {
			before := p.Grads[1].F32()[0]
			block.BackwardWeight(p)
			p.Grads[1].F32()[0] = before
		}},
		"a weight half in the input half": wrong{Layer: linear, input: func(p layer.Pass) {
			linear.BackwardInput(p)
			linear.BackwardWeight(p)
		}},
		"a weight gradient added to what was there before the batch": wrong{Layer: linear, weight: func(p layer.Pass) {
			p.Fresh = false
			linear.BackwardWeight(p)
		}},
		"a clobbered output gradient": wrong{Layer: all["gelu"], input: func(p layer.Pass) {
			p.DIn, p.DOut = p.DOut, p.DIn
			all["gelu"].BackwardInput(p)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := stagetest.CheckGradient(ref.New(), l, layer.Size{B: 2, T: 5}, nil); err == nil {
				t.Error("the gradient check passed")
			}
		})
	}
}
