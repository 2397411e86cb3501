package layer

import "github.com/avgpipe/avgpipe/stage/device"

// imageBlock is a block of a residual network: y = relu(norm(f(x)) + skip(x)), with f a chain that ends in a convolution, and
// skip the identity or a projection (He et al. 2016a, equations 1 and 2). The sum and the ReLU are computed by the norm.
type imageBlock struct {
	path   string
	branch Layer
	norm   ImageNorm
	skip   Layer // nil: the identity
	params []Param
	width  int // elements of a sample that go in
}

// NewImageBlock makes a block. norm.ReLU is set. skip may be nil.
func NewImageBlock(path string, branch Layer, norm ImageNorm, skip Layer) Layer {
	norm.ReLU = true
	in, _ := Ports(branch, Size{B: 1, T: 1})
	l := &imageBlock{path, branch, norm, skip, Params(branch, norm), in[0].Elements}
	if skip != nil {
		l.params = append(l.params, Params(skip)...)
	}
	return l
}

func (l *imageBlock) Describe(s Size) Description {
	return Description{l.path, l.params, row("x", s, l.width), row("y", s, l.norm.Of.Elements())}
}

// Emit implements Layer: dx is the sum of what comes through skip and through f.
func (l *imageBlock) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	f, backF := l.branch.Emit(b, t.take(l.branch), in)
	norm, skipped, backSkip := t.take(l.norm), in, Backward(nil)
	if l.skip != nil {
		skipped, backSkip = l.skip.Emit(b, t, in)
	}
	y, backNorm := l.norm.emit(b, norm, f[0], skipped[0])
	return single(y, func(dy device.Mem) device.Mem {
		df, dskip := backNorm(dy)
		past := []device.Mem{dskip}
		if backSkip != nil {
			past = backSkip(past)
		}
		return b.add(past[0], backF([]device.Mem{df})[0])
	})
}
