package layer

import "github.com/avgpipe/avgpipe/stage/device"

// RMSNorm divides each row of x (R,D) by the root of its mean square and scales it (Zhang and Sennrich 2019).
type RMSNorm struct {
	Path    string
	Width   int
	Epsilon float32
}

// Name implements Layer.
func (l RMSNorm) Name() string { return l.Path }

// Params implements Layer: the weight.
func (l RMSNorm) Params() []Param {
	return []Param{{Name: l.Path + ".weight", Shape: []int{l.Width}, Init: Init{Mean: 1}}}
}

// Ports implements Layer. What is normalised goes to products.
func (l RMSNorm) Ports(s Size) (in, out []Port) {
	return row("x", s, l.Width), operand("y", s, l.Width)
}

// Emit implements Layer.
func (l RMSNorm) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	x, y, rstd := in[0], b.Operand(l.Width), b.Floats(1)
	b.Do(&device.Norm{Y: y, Rstd: rstd, X: x, Weight: t.Params[0], Epsilon: l.Epsilon})
	return single(y, func(dy device.Mem) device.Mem {
		b.Do(&device.NormBackwardWeight{DWeight: t.Grads[0], DY: dy, X: x, Rstd: rstd})
		dx := b.Like(x)
		b.Do(&device.NormBackward{DX: dx, DY: dy, X: x, Rstd: rstd, Weight: t.Params[0]})
		return dx
	})
}
