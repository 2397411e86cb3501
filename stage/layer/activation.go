package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Activation is a function of single elements of x (R,Width): GELU, in its tanh form ("gelu_new" in Hugging Face configs) or itself
// ("gelu"), ReLU (Nair and Hinton 2010) or tanh.
type Activation struct {
	device.Function
	Path  string
	Width int
}

// Name implements Layer.
func (l Activation) Name() string { return l.Path }

// Ports implements Layer. A GELU lies between two products.
func (l Activation) Ports(s Size) (in, out []Port) {
	if l.Function == device.ReLU || l.Function == device.Tanh {
		return row("x", s, l.Width), row("y", s, l.Width)
	}
	return operand("x", s, l.Width), operand("y", s, l.Width)
}

// Params implements Layer.
func (l Activation) Params() []Param { return nil }

// Emit implements Layer.
func (l Activation) Emit(b *Builder, _ Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	x := in[0]
	y := b.Like(x)
	b.Do(&device.Unary{Y: y, X: x, Function: l.Function})
	return single(y, func(dy device.Mem) device.Mem {
		dx := b.Like(x)
		seen := x
		if l.Function == device.Tanh {
			seen = y
		}
		b.Do(&device.UnaryBackward{DX: dx, DY: dy, X: seen, Function: l.Function})
		return dx
	})
}
