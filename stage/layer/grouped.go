package layer

import "github.com/avgpipe/avgpipe/stage/device"

// GroupedAttention is attention between projections of their own for queries, keys and values:
//
//	q (R,H*S), k, v (R,KV*S) = x (R,D) Wq, x Wk, x Wv
//	q, k                     = turned by their positions, with Theta
//	a (R,H*S)                = softmax(mask(q k^T / sqrt(S))) v, per head; H/KV heads share keys and values
//	y (R,D)                  = a Wproject
//
// It is LLaMA's attention (grouped-query: Ainslie et al. 2023; rotary positions: Su et al. 2021); with a Window, Mistral's (Jiang
// et al. 2023, section 2); Bidirectional and Masked, BERT's (Devlin et al. 2019).
type GroupedAttention struct {
	Path             string
	Q, K, V, Project Linear
	Heads, KV        int
	Theta            float64 // of rotary positions; 0: none
	Stretch          device.Stretch
	Bidirectional    bool
	Window           int // positions that a position sees at most, itself and those before it; 0: all of them
	// Masked adds an input port behind x, the mask (B,T): keys where it is 0 are not seen.
	Masked bool
	// Rate is the probability with which an element of the softmax is dropped.
	Rate float64
}

// Name implements Layer.
func (l *GroupedAttention) Name() string { return l.Path }

func (l *GroupedAttention) projections() [4]Linear { return [4]Linear{l.Q, l.K, l.V, l.Project} }

// Params implements Layer: of Q, K, V and Project.
func (l *GroupedAttention) Params() (ps []Param) {
	for _, f := range l.projections() {
		ps = append(ps, f.Params()...)
	}
	return ps
}

// bounds are where in the parameters those of each projection begin, and the last ends.
func (l *GroupedAttention) bounds() (at [5]int) {
	for i, f := range l.projections() {
		at[i+1] = at[i] + f.count()
	}
	return at
}

// Ports implements Layer. Masked, x is the residual stream, F32; else what a norm gives.
func (l *GroupedAttention) Ports(s Size) (in, out []Port) {
	if l.Masked {
		return append(row("x", s, l.Q.In), maskPort(s)), row("y", s, l.Project.Out)
	}
	return operand("x", s, l.Q.In), row("y", s, l.Project.Out)
}

// shape is without the mask.
func (l *GroupedAttention) shape(s Size) device.AttentionShape {
	return device.AttentionShape{
		B: s.B, T: s.T, H: l.Heads, KV: l.KV, S: l.Q.Out / l.Heads, Bidirectional: l.Bidirectional, Window: l.Window,
	}
}

// attention is the shape with what the pass adds to it.
func (l *GroupedAttention) attention(p Pass) device.AttentionShape {
	a := l.shape(p.Size)
	if l.Masked {
		a.Mask = maskOf(p.In, p.Size)
	}
	a.Dropout = attentionDropout(p, l.Path, l.Rate, l.Heads)
	return a
}

func (l *GroupedAttention) rotation(s Size, heads int, inverse bool) device.Rotation {
	return device.Rotation{B: s.B, T: s.T, Heads: heads, S: l.Q.Out / l.Heads, Theta: l.Theta, Stretch: l.Stretch, Inverse: inverse}
}

// rotate turns q and k, or their gradients back, in place.
func (l *GroupedAttention) rotate(p Pass, q, k device.Mem, inverse bool) {
	if l.Theta == 0 {
		return
	}
	p.Device.Do(&device.Rotate{Y: q, X: q, Rotation: l.rotation(p.Size, l.Heads, inverse)})
	p.Device.Do(&device.Rotate{Y: k, X: k, Rotation: l.rotation(p.Size, l.KV, inverse)})
}

// x is the first input port, or its gradient.
func (l *GroupedAttention) x(m device.Mem, s Size) device.Mem {
	if !l.Masked {
		return m
	}
	return mainOf(m, s, l.Q.In)
}

// projected is the words of q, k and v.
func (l *GroupedAttention) projected(s Size) int {
	rows := s.Rows()
	return Padded(WordsOf(s.Compute, rows*l.Q.Out)) + Padded(WordsOf(s.Compute, rows*l.K.Out)) + Padded(WordsOf(s.Compute, rows*l.V.Out))
}

// Saved implements Layer: q, k, v, a and what the device needs.
func (l *GroupedAttention) Saved(s Size) int {
	return l.projected(s) + Padded(WordsOf(s.Compute, s.Rows()*l.Q.Out)) + Padded(l.shape(s).Saved())
}

// attended is what a pass saves, or the gradients of the first three.
type attended struct{ q, k, v, a, saved device.Mem }

// cut takes q, k, v and, behind them, a.
func (l *GroupedAttention) cut(c *cutter, s Size) attended {
	t, rows := s.Compute, s.Rows()
	return attended{q: c.takeAs(t, rows*l.Q.Out), k: c.takeAs(t, rows*l.K.Out), v: c.takeAs(t, rows*l.V.Out), a: c.takeAs(t, rows*l.Q.Out)}
}

func (l *GroupedAttention) saved(p Pass) attended {
	c := cutter{mem: p.Saved}
	x := l.cut(&c, p.Size)
	if !p.Evaluating {
		x.saved = c.take(l.shape(p.Size).Saved())
	}
	return x
}

// Kept implements Layer: dq, dk, dv and da. Parts of the gradient of x later overwrite da.
func (l *GroupedAttention) Kept(s Size) int {
	rows := s.Rows()
	return l.projected(s) + Padded(WordsOf(s.Compute, rows*max(l.Q.Out, l.Q.In)))
}

// FLOPs implements Layer. The scores and the weighted sum are 2*S each for every pair of a query and a key.
func (l *GroupedAttention) FLOPs(s Size) (forward, backward float64) {
	for _, f := range l.projections() {
		a, b := f.FLOPs(s)
		forward, backward = forward+a, backward+b
	}
	scores := 4 * float64(s.B) * float64(l.Q.Out) * l.shape(s).Pairs()
	return forward + scores, backward + 2*scores
}

// Forward implements Layer.
func (l *GroupedAttention) Forward(p Pass) {
	y, at, x := l.saved(p), l.bounds(), l.x(p.In, p.Size)
	l.Q.Forward(part(p, at[0], at[1], x, y.q))
	l.K.Forward(part(p, at[1], at[2], x, y.k))
	l.V.Forward(part(p, at[2], at[3], x, y.v))
	l.rotate(p, y.q, y.k, false)
	p.Device.Do(&device.Attention{Out: y.a, Saved: y.saved, Q: y.q, K: y.k, V: y.v, AttentionShape: l.attention(p)})
	l.Project.Forward(part(p, at[3], at[4], y.a, p.Out))
}

// BackwardInput implements Layer.
func (l *GroupedAttention) BackwardInput(p Pass) {
	y, at := l.saved(p), l.bounds()
	c := cutter{mem: p.Kept}
	d := l.cut(&c, p.Size)
	l.Project.BackwardInput(backward(p, at[3], at[4], p.DOut, d.a))
	p.Device.Do(&device.AttentionBackward{
		DQ: d.q, DK: d.k, DV: d.v, DOut: d.a, Q: y.q, K: y.k, V: y.v, Out: y.a, Saved: y.saved, AttentionShape: l.attention(p),
	})
	l.rotate(p, d.q, d.k, true)
	n, dx := p.Size.Rows()*l.Q.In, l.x(p.DIn, p.Size)
	more := p.Kept.Slice(l.projected(p.Size), WordsOf(p.Size.Compute, n)).As(p.Size.Compute, n)
	l.Q.BackwardInput(backward(p, at[0], at[1], d.q, dx))
	l.K.BackwardInput(backward(p, at[1], at[2], d.k, more))
	p.Device.Do(&device.Add{Out: dx, A: dx, B: more})
	l.V.BackwardInput(backward(p, at[2], at[3], d.v, more))
	p.Device.Do(&device.Add{Out: dx, A: dx, B: more})
}

// BackwardWeight implements Layer.
func (l *GroupedAttention) BackwardWeight(p Pass) {
	y, at, x := l.saved(p), l.bounds(), l.x(p.In, p.Size)
	c := cutter{mem: p.Kept}
	d := l.cut(&c, p.Size)
	l.Project.BackwardWeight(weights(p, at[3], at[4], y.a, p.DOut))
	l.V.BackwardWeight(weights(p, at[2], at[3], x, d.v))
	l.K.BackwardWeight(weights(p, at[1], at[2], x, d.k))
	l.Q.BackwardWeight(weights(p, at[0], at[1], x, d.q))
}
