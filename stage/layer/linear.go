package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Linear is y (R,Out) = x (R,In) W [+ b]. Where products compute in BF16, W is a copy in BF16, and x is F32 or BF16.
type Linear struct {
	Path    string // "transformer.h.0.attn.c_attn": the parameters are Path.weight and Path.bias
	In, Out int
	Bias    bool
	// OutIn stores W as (Out,In), like an embedding or PyTorch's nn.Linear; else (In,Out), like GPT-2's Conv1D.
	OutIn  bool
	Init   Init
	TiedTo string // see Param
	// Narrow gives y in the type in which products compute; else it is F32.
	Narrow bool
	// Adapter adds a low-rank product to y; nil: none.
	Adapter *Adapter

	factor bool // of an adapter
	wide   bool // the gradient of x is F32, to be added to others and then rounded; else of x's type
}

// Describe implements Layer: the parameters are the weight, then the bias, then A and B of the adapter. x may be BF16 as well.
func (l Linear) Describe(s Size) Description {
	shape := []int{l.In, l.Out}
	if l.OutIn {
		shape = []int{l.Out, l.In}
	}
	ps := []Param{{Name: l.Path + ".weight", Shape: shape, Init: l.Init, Decay: true, TiedTo: l.TiedTo, Product: true, Fresh: true, Adapter: l.factor}}
	if l.Bias {
		ps = append(ps, Param{Name: l.Path + ".bias", Shape: []int{l.Out}})
	}
	if l.Adapter != nil {
		a, b := l.Factors()
		ps = append(ps, Params(a, b)...)
	}
	return Description{l.Path, ps, row("x", s, l.In), result(s, l.Out, l.Narrow)}
}

func (l Linear) takesOperand() bool { return true }

// Emit implements Layer.
func (l Linear) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	return single(l.emit(b, t, in[0]))
}

// emit is Emit of the one port.
func (l Linear) emit(b *Builder, t Tensors, x device.Mem) (y device.Mem, back func(dy device.Mem) (dx device.Mem)) {
	if l.Adapter != nil {
		return l.adapted(b, t, x)
	}
	return l.product(b, t, x, device.Mem{})
}

// product is emit without an adapter; onto is an F32 tensor that y is added to, absent for a new one. dx (R,In) = dy (R,Out) W^T, of x's type; dW += x^T dy, or dy^T x when W is (Out,In); db += the sum of dy over
// the rows. Where products compute in BF16 they take x and dy so, as PyTorch's autocast does: the units for it want both operands.
func (l Linear) product(b *Builder, t Tensors, x, onto device.Mem) (y device.Mem, back func(dy device.Mem) (dx device.Mem)) {
	rows, kind := b.Rows(), x.Type()
	if l.wide {
		kind = device.F32
	}
	switch {
	case !onto.Absent():
		y = onto
	case l.Narrow:
		y = b.Operand(l.Out)
	default:
		y = b.Floats(l.Out)
	}
	m := device.Product{M: rows, N: l.Out, K: l.In, TransB: l.OutIn, Accumulate: !onto.Absent()}
	if l.Bias {
		m.Bias = t.Params[1]
	}
	b.Do(&device.MatMul{C: y, A: b.narrow(x), B: t.Params[0], Product: m})
	return y, func(dy device.Mem) device.Mem {
		if l.Bias {
			b.Do(&device.SumRows{Sum: t.Grads[1], X: dy})
		}
		x, dy := b.narrow(x), b.narrow(dy)
		if l.OutIn {
			b.Do(&device.MatMul{C: t.Grads[0], A: dy, B: x, Product: device.Product{M: l.Out, N: l.In, K: rows, TransA: true, Accumulate: true}})
		} else {
			b.Do(&device.MatMul{C: t.Grads[0], A: x, B: dy, Product: device.Product{M: l.In, N: l.Out, K: rows, TransA: true, Accumulate: true}})
		}
		dx := b.New(kind, rows*l.In)
		b.Do(&device.MatMul{C: dx, A: dy, B: t.Params[0], Product: device.Product{M: rows, N: l.In, K: l.Out, TransB: !l.OutIn}})
		return dx
	}
}
