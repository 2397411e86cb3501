package layer

import "github.com/avgpipe/avgpipe/stage/device"

// maskPort is the mask (B,T) that travels behind x through a bidirectional model: 1 at a token, 0 at padding.
func maskPort(s Size) Port { return Port{Name: "mask", Type: device.I32, Elements: s.Rows(), Limit: 2} }

// PassMask passes the mask on to later layers: it adds the last input port of a layer f as a second output port, behind f's output y.
type PassMask struct{ Layer }

// Ports implements Layer.
func (l PassMask) Ports(s Size) (in, out []Port) {
	in, out = l.Layer.Ports(s)
	return in, append(out, maskPort(s))
}

// Emit implements Layer.
func (l PassMask) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	out, back := l.Layer.Emit(b, t, in)
	return append(out, in[len(in)-1]), func(dout []device.Mem) []device.Mem { return back(dout[:1]) }
}

// PostNorm is y = norm(x + f(x)) (Vaswani et al. 2017, section 3.1; BERT's blocks), x and y (R,D). f may have a mask behind x.
type PostNorm struct {
	f      Layer
	norm   LayerNorm
	masked bool
	params []Param
}

// NewPostNorm makes a branch around f, whose input and output have the shape of the norm's.
func NewPostNorm(f Layer, norm LayerNorm) *PostNorm {
	in, _ := f.Ports(Size{B: 1, T: 1})
	return &PostNorm{
		f: f, norm: norm, masked: len(in) > 1, params: append(f.Params(), norm.Params()...),
	}
}

// Name implements Layer.
func (l *PostNorm) Name() string { return l.f.Name() }

// Params implements Layer: of f, then of the norm.
func (l *PostNorm) Params() []Param { return l.params }

// Ports implements Layer.
func (l *PostNorm) Ports(s Size) (in, out []Port) {
	in = row("x", s, l.norm.Width)
	if l.masked {
		in = append(in, maskPort(s))
	}
	return in, row("y", s, l.norm.Width)
}

// Emit implements Layer.
func (l *PostNorm) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	branch, backF := l.f.Emit(b, t.take(l.f), in)
	y, backNorm := l.norm.Emit(b, t, []device.Mem{b.add(branch[0], in[0])})
	return y, func(dout []device.Mem) []device.Mem {
		dsum := backNorm(dout)
		din := make([]device.Mem, len(in))
		din[0] = b.add(backF(dsum)[0], dsum[0])
		return din
	}
}
