package layer

import (
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Adapter is a low-rank update of a linear layer (LoRA: Hu et al. 2021, section 4.1): y (R,Out) += Scale (drop(x) A^T) B^T, with A
// (Rank,In) and B (Out,Rank), which is zero at first.
type Adapter struct {
	Rank  int
	Scale float32 // alpha / rank
	Rate  float64 // with which elements of x are dropped
}

// Factors are A and B as layers. Their names are those of Hugging Face's library for adapters.
func (l Linear) Factors() (a, b Linear) {
	r := l.Adapter.Rank
	start := UniformInit(1 / math.Sqrt(float64(l.In))) // as that library's
	return Linear{Path: l.Path + ".lora_A", In: l.In, Out: r, OutIn: true, Init: start, factor: true},
		Linear{Path: l.Path + ".lora_B", In: r, Out: l.Out, OutIn: true, factor: true}
}

// adapted is emit with the adapter. Sums are F32.
func (l Linear) adapted(b *Builder, t Tensors, x device.Mem) (y device.Mem, back func(dy device.Mem) (dx device.Mem)) {
	base, scale, rate, name := l, l.Adapter.Scale, l.Adapter.Rate, l.Path+".lora_dropout"
	base.Adapter, base.Narrow, base.wide = nil, false, true
	down, up := l.Factors()
	down.wide = true
	y, backBase := base.product(b, t.take(base), x, device.Mem{})
	u, backDown := down.product(b, t.take(down), b.drop(x, name, rate, l.In), device.Mem{})
	b.Do(&device.Scale{X: u, A: scale})
	_, backUp := up.product(b, t.take(up), u, y)
	if l.Narrow {
		y = b.narrow(y)
	}
	return y, func(dy device.Mem) device.Mem {
		du := backUp(dy)
		b.Do(&device.Scale{X: du, A: scale})
		ddown := b.drop(backDown(du), name, rate, l.In)
		dx := b.add(backBase(dy), ddown)
		if l.wide {
			return dx
		}
		return b.rounded(dx, x)
	}
}

// Adapt is l with what do makes of each of its linear layers that can have an adapter, those within the blocks of transformers included.
func Adapt(l Layer, do func(Linear) Linear) Layer {
	switch l := l.(type) {
	case Linear:
		return do(l)
	case *SelfAttention:
		out := *l
		out.QKV = slices.Clone(l.QKV)
		for i, f := range l.QKV {
			out.QKV[i] = do(f)
		}
		out.Project = do(l.Project)
		return &out
	case *GatedMLP:
		out := *l
		out.Gate, out.Up, out.Down = do(l.Gate), do(l.Up), do(l.Down)
		return &out
	case *Chain:
		layers := make([]Layer, len(l.layers))
		for i, inner := range l.layers {
			layers[i] = Adapt(inner, do)
		}
		return NewChain(l.name, layers...)
	case residual:
		return NewResidual(Adapt(l.Layer, do))
	case *dropout:
		return NewDropout(Adapt(l.Layer, do), l.rate)
	case PassMask:
		return PassMask{Adapt(l.Layer, do)}
	case *first:
		return NewFirst(Adapt(l.Layer, do))
	}
	return l
}
