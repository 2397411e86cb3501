package layer

import "github.com/avgpipe/avgpipe/stage/device"

// First runs a layer f on the first position of every sample of x (B,T,D), of which BERT's classifiers see no other (Devlin
// et al. 2019, section 3). Its output is f's, for B rows.
type First struct {
	f     Layer
	width int
}

// NewFirst makes a First around f, whose input is F32.
func NewFirst(f Layer) *First {
	in, _ := f.Ports(Size{B: 1, T: 1})
	return &First{f: f, width: in[0].Elements}
}

// one is the size of a micro-batch with one position.
func one(s Size) Size { return Size{B: s.B, T: 1, Compute: s.Compute} }

// Name implements Layer.
func (l *First) Name() string { return l.f.Name() }

// Params implements Layer.
func (l *First) Params() []Param { return l.f.Params() }

// Ports implements Layer.
func (l *First) Ports(s Size) (in, out []Port) {
	_, out = l.f.Ports(one(s))
	return row("x", s, l.width), out
}

// Saved implements Layer: the first positions (B,D) and what f saves.
func (l *First) Saved(s Size) int { return Padded(s.B*l.width) + l.f.Saved(one(s)) }

// Kept implements Layer: the gradient of the first positions and what f keeps.
func (l *First) Kept(s Size) int { return Padded(s.B*l.width) + l.f.Kept(one(s)) }

// FLOPs implements Layer.
func (l *First) FLOPs(s Size) (forward, backward float64) { return l.f.FLOPs(one(s)) }

// inner is f's pass, and the first positions' gradient.
func (l *First) inner(p Pass) Pass {
	q := p
	c := cutter{mem: p.Saved}
	q.Size, q.In = one(p.Size), c.take(p.Size.B*l.width)
	q.Saved = c.take(l.f.Saved(q.Size))
	if p.Kept.Absent() {
		return q
	}
	c = cutter{mem: p.Kept}
	q.DIn = c.take(p.Size.B * l.width)
	q.Kept = c.take(l.f.Kept(q.Size))
	return q
}

// place is where the first position of sample b lies in x.
func (l *First) place(x device.Mem, s Size, b int) device.Mem {
	return x.Slice(b*s.T*l.width, l.width)
}

// Forward implements Layer.
func (l *First) Forward(p Pass) {
	q := l.inner(p)
	for b := range p.Size.B {
		p.Device.Do(&device.Copy{Y: q.In.Slice(b*l.width, l.width), X: l.place(p.In, p.Size, b)})
	}
	l.f.Forward(q)
}

// BackwardInput implements Layer.
func (l *First) BackwardInput(p Pass) {
	q := l.inner(p)
	l.f.BackwardInput(q)
	p.Device.Do(&device.Zero{X: p.DIn})
	for b := range p.Size.B {
		p.Device.Do(&device.Copy{Y: l.place(p.DIn, p.Size, b), X: q.DIn.Slice(b*l.width, l.width)})
	}
}

// BackwardWeight implements Layer.
func (l *First) BackwardWeight(p Pass) { l.f.BackwardWeight(l.inner(p)) }
