package layer

import "github.com/avgpipe/avgpipe/stage/device"

// SelfAttention is causal multi-head self-attention (Vaswani et al. 2017, section 3.2) between its two projections:
//
//	q, k, v (B,T,3D) = x (B,T,D) Wqkv + b
//	a (B,T,D)        = softmax(mask(q k^T / sqrt(S))) v, per head
//	y (B,T,D)        = a Wproj + b
//
// The middle is one fused operation of the device.
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

func (l *SelfAttention) takesOperand() bool { return true }

func (l *SelfAttention) shape(b *Builder) device.AttentionShape {
	return device.AttentionShape{
		B: b.B, T: b.T, H: l.Heads, S: l.Project.In / l.Heads, QStride: l.QKV.Out, KVStride: l.QKV.Out,
		Dropout: attentionDropout(b, l.Path, l.Rate, l.Heads),
	}
}

// thirds cuts q, k and v, interleaved row by row, out of qkv (B,T,3D).
func (l *SelfAttention) thirds(qkv device.Mem, a device.AttentionShape) (q, k, v device.Mem) {
	width, n := l.Project.In, a.Queries()
	return qkv.Slice(0, n), qkv.Slice(width, n), qkv.Slice(2*width, n)
}

// Emit implements Layer.
func (l *SelfAttention) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	shape, first := l.shape(b), l.QKV
	first.Narrow = true
	qkv, backQKV := first.emit(b, t.take(first), in[0])
	q, k, v := l.thirds(qkv, shape)
	a, saved := b.Operand(l.Project.In), attentionSaved(b, shape)
	attend(b, &device.Attention{Out: a, Saved: saved, Q: q, K: k, V: v, AttentionShape: shape})
	y, backProject := l.Project.emit(b, t, a)
	return single(y, func(dy device.Mem) device.Mem {
		da, dqkv := backProject(dy), b.Like(qkv)
		dq, dk, dv := l.thirds(dqkv, shape)
		b.Do(&device.AttentionBackward{DQ: dq, DK: dk, DV: dv, DOut: da, Q: q, K: k, V: v, Out: a, Saved: saved, AttentionShape: shape})
		return backQKV(dqkv)
	})
}

// attentionSaved is what an attention keeps for its backward; absent where none follows.
func attentionSaved(b *Builder, a device.AttentionShape) device.Mem {
	if b.Evaluating {
		return device.Mem{}
	}
	return b.New(device.F32, a.Saved())
}
