package layer

import "github.com/avgpipe/avgpipe/stage/device"

// GatedMLP is the feed-forward branch of LLaMA's blocks (Shazeer 2020, equation 6):
//
//	g, u (R,F) = x (R,D) Wgate, x Wup
//	h (R,F)    = g / (1 + exp(-g)) * u
//	y (R,D)    = h Wdown
type GatedMLP struct {
	Path           string
	Gate, Up, Down Linear
}

// Name implements Layer.
func (l *GatedMLP) Name() string { return l.Path }

// Params implements Layer: of Gate, Up and Down.
func (l *GatedMLP) Params() []Param {
	return append(append(l.Gate.Params(), l.Up.Params()...), l.Down.Params()...)
}

// Ports implements Layer.
func (l *GatedMLP) Ports(s Size) (in, out []Port) {
	return operand("x", s, l.Gate.In), row("y", s, l.Down.Out)
}

// inner is the words of one of g, u and h.
func (l *GatedMLP) inner(s Size) int { return Padded(WordsOf(s.Compute, s.Rows()*l.Gate.Out)) }

// Saved implements Layer: g, u and h.
func (l *GatedMLP) Saved(s Size) int { return 3 * l.inner(s) }

// Kept implements Layer: dg, du and dh. The second part of the gradient of x later overwrites dh.
func (l *GatedMLP) Kept(s Size) int {
	return 2*l.inner(s) + max(l.inner(s), Padded(l.words(s)))
}

// words is those of the gradient of x.
func (l *GatedMLP) words(s Size) int { return WordsOf(s.Compute, s.Rows()*l.Gate.In) }

// FLOPs implements Layer.
func (l *GatedMLP) FLOPs(s Size) (forward, backward float64) {
	for _, f := range [...]Linear{l.Gate, l.Up, l.Down} {
		a, b := f.FLOPs(s)
		forward, backward = forward+a, backward+b
	}
	return forward, backward
}

// three cuts the memory of g, u and h, or of their gradients.
func (l *GatedMLP) three(m device.Mem, s Size) (g, u, h device.Mem) {
	c, n := cutter{mem: m}, s.Rows()*l.Gate.Out
	return c.takeAs(s.Compute, n), c.takeAs(s.Compute, n), c.takeAs(s.Compute, n)
}

// Forward implements Layer.
func (l *GatedMLP) Forward(p Pass) {
	g, u, h := l.three(p.Saved, p.Size)
	at := l.bounds()
	l.Gate.Forward(part(p, at[0], at[1], p.In, g))
	l.Up.Forward(part(p, at[1], at[2], p.In, u))
	p.Device.Do(&device.SwiGLU{Y: h, Gate: g, Up: u})
	l.Down.Forward(part(p, at[2], at[3], h, p.Out))
}

// bounds are where in the parameters those of Gate, Up and Down begin, and end.
func (l *GatedMLP) bounds() (at [4]int) {
	for i, f := range [...]Linear{l.Gate, l.Up, l.Down} {
		at[i+1] = at[i] + f.count()
	}
	return at
}

// BackwardInput implements Layer.
func (l *GatedMLP) BackwardInput(p Pass) {
	g, u, _ := l.three(p.Saved, p.Size)
	dg, du, dh := l.three(p.Kept, p.Size)
	at := l.bounds()
	l.Down.BackwardInput(backward(p, at[2], at[3], p.DOut, dh))
	p.Device.Do(&device.SwiGLUBackward{DGate: dg, DUp: du, DY: dh, Gate: g, Up: u})
	second := p.Kept.Slice(2*l.inner(p.Size), l.words(p.Size)).As(p.Size.Compute, p.Size.Rows()*l.Gate.In)
	l.Gate.BackwardInput(backward(p, at[0], at[1], dg, p.DIn))
	l.Up.BackwardInput(backward(p, at[1], at[2], du, second))
	p.Device.Do(&device.Add{Out: p.DIn, A: p.DIn, B: second})
}

// BackwardWeight implements Layer.
func (l *GatedMLP) BackwardWeight(p Pass) {
	_, _, h := l.three(p.Saved, p.Size)
	dg, du, _ := l.three(p.Kept, p.Size)
	at := l.bounds()
	l.Down.BackwardWeight(weights(p, at[2], at[3], h, p.DOut))
	l.Up.BackwardWeight(weights(p, at[1], at[2], p.In, du))
	l.Gate.BackwardWeight(weights(p, at[0], at[1], p.In, dg))
}
