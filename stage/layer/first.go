package layer

import "github.com/avgpipe/avgpipe/stage/device"

type first struct {
	Layer
	width int
}

// NewFirst runs a layer f, whose input is F32, on the first position of every sample of x (B,T,D), of which BERT's classifiers see no other
// (Devlin et al. 2019, section 3). Its output is f's, for B rows.
func NewFirst(f Layer) Layer {
	in, _ := Ports(f, Size{B: 1, T: 1})
	return &first{f, in[0].Elements}
}

// one is the size of a micro-batch with one position.
func one(s Size) Size { return Size{B: s.B, T: 1, Compute: s.Compute} }

func (l *first) Describe(s Size) Description {
	d := l.Layer.Describe(one(s))
	d.In = row("x", s, l.width)
	return d
}

// place is where the first position of sample n lies in x.
func (l *first) place(x device.Mem, s Size, n int) device.Mem { return x.Slice(n*s.T*l.width, l.width) }

func (l *first) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	inner := *b
	inner.Size = one(b.Size)
	firsts := inner.Floats(l.width)
	for n := range b.B {
		b.Do(&device.Copy{Y: firsts.Slice(n*l.width, l.width), X: l.place(in[0], b.Size, n)})
	}
	y, back := l.Layer.Emit(&inner, t, []device.Mem{firsts})
	return y, func(dout []device.Mem) []device.Mem {
		d, dx := back(dout)[0], b.Like(in[0])
		b.Do(&device.Zero{X: dx})
		for n := range b.B {
			b.Do(&device.Copy{Y: l.place(dx, b.Size, n), X: d.Slice(n*l.width, l.width)})
		}
		return []device.Mem{dx}
	}
}
