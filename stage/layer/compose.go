package layer

import "github.com/avgpipe/avgpipe/stage/device"

// operand is the single port (R,C) of what a product reads or writes: in BF16 where products compute in it.
func operand(name string, s Size, columns int) []Port {
	return []Port{{Name: name, Type: s.Compute, Elements: s.Rows() * columns}}
}

// count is the number of a projection's parameters.
func (l Linear) count() int {
	if l.Bias {
		return 2
	}
	return 1
}

// part is the forward pass of a layer within another: parameters [from, to), input and output.
func part(p Pass, from, to int, in, out device.Mem) Pass {
	p.Params, p.In, p.Out = p.Params[from:to], in, out
	return p
}

// backward is the input half's pass of a layer within another.
func backward(p Pass, from, to int, dout, din device.Mem) Pass {
	p.Params, p.DOut, p.DIn = p.Params[from:to], dout, din
	return p
}

// weights is the weight half's pass of a layer within another.
func weights(p Pass, from, to int, in, dout device.Mem) Pass {
	p.Params, p.Grads, p.In, p.DOut = p.Params[from:to], p.Grads[from:to], in, dout
	return p
}
