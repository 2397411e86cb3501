package layer

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
)

// SelfAttention is multi-head self-attention (Vaswani et al. 2017, section 3.2) between projections of queries, keys and values, and one of
// its result:
//
//	q (R,H*S), k, v (R,KV*S) = x (R,D) Wq, x Wk, x Wv
//	q, k                     = turned by their positions, with Theta
//	a (R,H*S)                = softmax(mask(q k^T / sqrt(S))) v, per head; H/KV heads share keys and values
//	y (R,D)                  = a Wproject
//
// The middle is one fused operation of the device. It is GPT-2's attention; LLaMA's (grouped-query: Ainslie et al. 2023; rotary positions: Su
// et al. 2021); with a Window, Mistral's (Jiang et al. 2023, section 2); Bidirectional and Masked, BERT's (Devlin et al. 2019).
type SelfAttention struct {
	Path string
	// QKV are projections for queries, for keys and for values, or one for all three, (D,3*H*S), which knows no rotation.
	QKV           []Linear
	Project       Linear
	Heads, KV     int     // KV 0: Heads
	Theta         float64 // of rotary positions; 0: none
	Stretch       device.Stretch
	Bidirectional bool
	Window        int // positions that a position sees at most, itself and those before it; 0: all of them
	// Masked adds an input port behind x, the mask (B,T): keys where it is 0 are not seen.
	Masked bool
	// Rate is the probability with which an element of the softmax is dropped.
	Rate float64
}

// Describe implements Layer: the parameters are of QKV and Project. Masked, x is the residual stream, F32; else what a norm gives.
func (l *SelfAttention) Describe(s Size) Description {
	d := Description{Name: l.Path, In: operand("x", s, l.QKV[0].In), Out: row("y", s, l.Project.Out)}
	for _, f := range append(slices.Clone(l.QKV), l.Project) {
		d.Params = append(d.Params, Params(f)...)
	}
	if l.Masked {
		d.In = append(row("x", s, l.QKV[0].In), maskPort(s))
	}
	return d
}

// shape is what the device is told; mask may be absent.
func (l *SelfAttention) shape(b *Builder, mask device.Mem) device.AttentionShape {
	a := device.AttentionShape{
		B: b.B, T: b.T, H: l.Heads, KV: l.KV, S: l.Project.In / l.Heads, Bidirectional: l.Bidirectional, Window: l.Window, Mask: mask,
	}
	if len(l.QKV) == 1 {
		a.QStride, a.KVStride = l.QKV[0].Out, l.QKV[0].Out
	}
	if l.Rate > 0 && !b.Evaluating {
		a.Dropout = device.DropoutMask{Rate: float32(l.Rate), Stream: device.StreamOf(l.Path + ".softmax"), PerSample: l.Heads * b.T * b.T}
	}
	return a
}

// rotate turns what projection i gives, or a gradient of it back, by positions: that of queries or keys.
func (l *SelfAttention) rotate(b *Builder, x device.Mem, i int, inverse bool) device.Mem {
	if l.Theta == 0 || i == 2 {
		return x
	}
	y := b.Like(x)
	b.Do(&device.Rotate{Y: y, X: x, Rotation: device.Rotation{
		B: b.B, T: b.T, Heads: []int{l.Heads, l.KV}[i], S: l.Project.In / l.Heads, Theta: l.Theta, Stretch: l.Stretch, Inverse: inverse,
	}})
	return y
}

// cut is q, k and v of what the projections give, which lie interleaved row by row where one gives all.
func cut(projected []device.Mem, a device.AttentionShape) (q, k, v device.Mem) {
	if len(projected) == 3 {
		return projected[0], projected[1], projected[2]
	}
	width, n := a.H*a.S, a.Queries()
	return projected[0].Slice(0, n), projected[0].Slice(width, n), projected[0].Slice(2*width, n)
}

// Emit implements Layer.
func (l *SelfAttention) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	var mask, saved device.Mem
	if l.Masked {
		mask = in[1]
	}
	x, shape := in[0], l.shape(b, mask)
	projected, backs := make([]device.Mem, len(l.QKV)), make([]func(device.Mem) device.Mem, len(l.QKV))
	for i, f := range l.QKV {
		f.Narrow, f.wide = true, len(l.QKV) > 1
		projected[i], backs[i] = f.emit(b, t.take(f), x)
	}
	for i, m := range projected {
		projected[i] = l.rotate(b, m, i, false)
	}
	q, k, v := cut(projected, shape)
	a := b.Operand(l.Project.In)
	if !b.Evaluating {
		saved = b.New(device.F32, shape.Saved())
	}
	attend(b, &device.Attention{Out: a, Saved: saved, Q: q, K: k, V: v, AttentionShape: shape})
	y, backProject := l.Project.emit(b, t, a)
	return []device.Mem{y}, func(dout []device.Mem) []device.Mem {
		da, d := backProject(dout[0]), make([]device.Mem, len(projected))
		for i, m := range projected {
			d[i] = b.Like(m)
		}
		dq, dk, dv := cut(d, shape)
		b.Do(&device.AttentionBackward{DQ: dq, DK: dk, DV: dv, DOut: da, Q: q, K: k, V: v, Out: a, Saved: saved, AttentionShape: shape})
		dx := backs[0](l.rotate(b, d[0], 0, true))
		for i := 1; i < len(d); i++ {
			dx = b.add(dx, backs[i](l.rotate(b, d[i], i, true)))
		}
		din := make([]device.Mem, len(in))
		din[0] = b.rounded(dx, x)
		return din
	}
}
