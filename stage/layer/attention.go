package layer

import "github.com/avgpipe/avgpipe/stage/device"

// SelfAttention is causal multi-head self-attention (Vaswani et al. 2017, section 3.2) between its two projections:
//
//	q, k, v (B,T,3D) = x (B,T,D) Wqkv + b
//	a (B,T,D)        = softmax(mask(q k^T / sqrt(S))) v, per head
//	y (B,T,D)        = a Wproj + b
//
// The middle is one fused operation of the device, which decides itself what it saves of the T x T scores.
type SelfAttention struct {
	Path    string
	Heads   int
	QKV     Linear // (D,3D)
	Project Linear // (D,D)
	// Rate is the probability with which an element of the softmax is dropped.
	Rate float64
}

// Name implements Layer.
func (l *SelfAttention) Name() string { return l.Path }

// Params implements Layer: of the first projection, then of the second.
func (l *SelfAttention) Params() []Param { return append(l.QKV.Params(), l.Project.Params()...) }

// Ports implements Layer.
func (l *SelfAttention) Ports(s Size) (in, out []Port) {
	return row("x", s, l.QKV.In), row("y", s, l.Project.Out)
}

func (l *SelfAttention) adapts() (in, out bool) { return true, true }

func (l *SelfAttention) shape(s Size) device.AttentionShape {
	return device.AttentionShape{B: s.B, T: s.T, H: l.Heads, S: l.Project.In / l.Heads, QStride: l.QKV.Out, KVStride: l.QKV.Out}
}

// attention is the shape with what the pass drops.
func (l *SelfAttention) attention(p Pass) device.AttentionShape {
	a := l.shape(p.Size)
	a.Dropout = attentionDropout(p, l.Path, l.Rate, l.Heads)
	return a
}

// thirds cuts q, k and v, interleaved row by row, out of qkv (B,T,3D).
func (l *SelfAttention) thirds(qkv device.Mem, s Size) (q, k, v device.Mem) {
	width, n := l.Project.In, l.shape(s).Queries()
	return qkv.Slice(0, n), qkv.Slice(width, n), qkv.Slice(2*width, n)
}

// Saved implements Layer: qkv (B,T,3D) and a (B,T,D), in the type in which products compute, and what the device needs.
func (l *SelfAttention) Saved(s Size) int {
	rows := s.Rows()
	return Padded(WordsOf(s.Compute, rows*l.QKV.Out)) + Padded(WordsOf(s.Compute, rows*l.Project.In)) + Padded(l.shape(s).Saved())
}

func (l *SelfAttention) saved(p Pass) (qkv, a, saved device.Mem) {
	c, rows := cutter{mem: p.Saved}, p.Size.Rows()
	qkv, a = c.takeAs(p.Size.Compute, rows*l.QKV.Out), c.takeAs(p.Size.Compute, rows*l.Project.In)
	if p.Evaluating {
		return qkv, a, device.Mem{}
	}
	return qkv, a, c.take(l.shape(p.Size).Saved())
}

// Kept implements Layer: dqkv (B,T,3D).
func (l *SelfAttention) Kept(s Size) int { return WordsOf(s.Compute, s.Rows()*l.QKV.Out) }

// dqkv is what Kept holds.
func (l *SelfAttention) dqkv(p Pass) device.Mem {
	return p.Kept.As(p.Size.Compute, p.Size.Rows()*l.QKV.Out)
}

// FLOPs implements Layer. The scores and the weighted sum are 2*T*T*D each per sample when not masked; causal masking
// halves them.
func (l *SelfAttention) FLOPs(s Size) (forward, backward float64) {
	f1, b1 := l.QKV.FLOPs(s)
	f2, b2 := l.Project.FLOPs(s)
	scores := 2 * float64(s.Rows()) * float64(s.T) * float64(l.Project.In)
	return f1 + f2 + scores, b1 + b2 + 2*scores
}

// Forward implements Layer.
func (l *SelfAttention) Forward(p Pass) {
	qkv, a, saved := l.saved(p)
	first, second := p, p
	first.Out, first.Params = qkv, p.Params[:2]
	l.QKV.Forward(first)
	q, k, v := l.thirds(qkv, p.Size)
	p.Device.Do(&device.Attention{Out: a, Saved: saved, Q: q, K: k, V: v, AttentionShape: l.attention(p)})
	second.In, second.Params = a, p.Params[2:]
	l.Project.Forward(second)
}

// BackwardInput implements Layer. The gradient of a lies in DIn until the first projection overwrites it.
func (l *SelfAttention) BackwardInput(p Pass) {
	qkv, a, saved := l.saved(p)
	da, dqkv := p.DIn.As(p.Size.Compute, p.Size.Rows()*l.Project.In), l.dqkv(p)
	first, second := p, p
	second.DIn, second.Params = da, p.Params[2:]
	l.Project.BackwardInput(second)
	q, k, v := l.thirds(qkv, p.Size)
	dq, dk, dv := l.thirds(dqkv, p.Size)
	p.Device.Do(&device.AttentionBackward{
		DQ: dq, DK: dk, DV: dv, DOut: da, Q: q, K: k, V: v, Out: a, Saved: saved, AttentionShape: l.attention(p),
	})
	first.DOut, first.Params = dqkv, p.Params[:2]
	l.QKV.BackwardInput(first)
}

// BackwardWeight implements Layer.
func (l *SelfAttention) BackwardWeight(p Pass) {
	_, a, _ := l.saved(p)
	first, second := p, p
	second.In, second.Grads = a, p.Grads[2:]
	l.Project.BackwardWeight(second)
	first.DOut, first.Grads = l.dqkv(p), p.Grads[:2]
	l.QKV.BackwardWeight(first)
}
