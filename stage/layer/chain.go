package layer

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Chain runs layers one after the other.
type Chain struct {
	name   string
	layers []Layer
	params []Param
}

// NewChain makes a chain. Within it, one port of R rows leads from each layer to the next, in the type in which products compute where the
// next layer takes it and this one can give it.
func NewChain(name string, layers ...Layer) *Chain {
	c := &Chain{name, slices.Clone(layers), Params(layers...)}
	for i, l := range layers {
		if i > 0 && takesOperand(l) {
			c.layers[i-1] = narrowed(layers[i-1])
		}
	}
	return c
}

// takesOperand reports whether a layer reads its input in BF16, or can, where products compute in it.
func takesOperand(l Layer) bool {
	if t, ok := l.(interface{ takesOperand() bool }); ok {
		return t.takesOperand()
	}
	in, _ := Ports(l, Size{B: 1, T: 1, Compute: device.BF16})
	return in[0].Type == device.BF16
}

// narrowed is l with its output in the type in which products compute, where it can give that.
func narrowed(l Layer) Layer {
	switch l := l.(type) {
	case Linear:
		l.Narrow = true
		return l
	case LayerNorm:
		l.Narrow = true
		return l
	case *dropout:
		return &dropout{narrowed(l.Layer), l.rate}
	case *Chain:
		last := len(l.layers) - 1
		return NewChain(l.name, append(slices.Clone(l.layers[:last]), narrowed(l.layers[last]))...)
	}
	return l
}

func (c *Chain) takesOperand() bool { return takesOperand(c.layers[0]) }

// Describe implements Layer: the parameters are those of the layers, in order.
func (c *Chain) Describe(s Size) Description {
	return Description{c.name, c.params, c.layers[0].Describe(s).In, c.layers[len(c.layers)-1].Describe(s).Out}
}

// Emit implements Layer.
func (c *Chain) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	backwards := make([]Backward, len(c.layers))
	out = in
	for i, l := range c.layers {
		out, backwards[i] = l.Emit(b, t.take(l), out)
	}
	return out, func(d []device.Mem) []device.Mem {
		for _, back := range slices.Backward(backwards) {
			d = back(d)
		}
		return d
	}
}

type residual struct{ Layer }

// NewResidual is y = x + f(x) (He et al. 2016) of a layer f, whose input, behind which a mask may lie, and output have the same shape.
func NewResidual(f Layer) Layer { return residual{f} }

// NewPostNorm is y = norm(x + f(x)) (Vaswani et al. 2017, section 3.1; BERT's blocks), x and y (R,D).
func NewPostNorm(f Layer, norm LayerNorm) *Chain { return NewChain(Name(f), NewResidual(f), norm) }

func (r residual) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	y, back := r.Layer.Emit(b, t, in)
	return []device.Mem{b.add(y[0], in[0])}, func(dout []device.Mem) []device.Mem {
		din := make([]device.Mem, len(in))
		din[0] = b.add(back(dout)[0], dout[0])
		return din
	}
}
