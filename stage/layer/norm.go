package layer

import "github.com/avgpipe/avgpipe/stage/device"

// LayerNorm normalises each row of x (R,D) to mean 0 and variance 1, then scales and shifts it (Ba et al. 2016).
type LayerNorm struct {
	Path    string
	Width   int
	Epsilon float32
	// RMS divides by the root of the mean square and scales; there is no mean and no bias (Zhang and Sennrich 2019).
	RMS bool
	// Narrow gives y in the type in which products compute; else it is F32.
	Narrow bool
}

// Describe implements Layer: the parameters are the weight, then the bias.
func (l LayerNorm) Describe(s Size) Description {
	ps := []Param{{Name: l.Path + ".weight", Shape: []int{l.Width}, Init: Init{Mean: 1}}}
	if !l.RMS {
		ps = append(ps, Param{Name: l.Path + ".bias", Shape: []int{l.Width}})
	}
	return Description{l.Path, ps, row("x", s, l.Width), result(s, l.Width, l.Narrow)}
}

// Emit implements Layer.
func (l LayerNorm) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	x, y := in[0], b.Floats(l.Width)
	if l.Narrow {
		y = b.Operand(l.Width)
	}
	var mean, bias, dbias device.Mem
	if !l.RMS {
		mean, bias, dbias = b.Floats(1), t.Params[1], t.Grads[1]
	}
	rstd := b.Floats(1)
	b.Do(&device.Norm{Y: y, Mean: mean, Rstd: rstd, X: x, Weight: t.Params[0], Bias: bias, Epsilon: l.Epsilon})
	return single(y, func(dy device.Mem) device.Mem {
		b.Do(&device.NormBackwardWeight{DWeight: t.Grads[0], DBias: dbias, DY: dy, X: x, Mean: mean, Rstd: rstd})
		dx := b.Like(x)
		b.Do(&device.NormBackward{DX: dx, DY: dy, X: x, Mean: mean, Rstd: rstd, Weight: t.Params[0]})
		return dx
	})
}
