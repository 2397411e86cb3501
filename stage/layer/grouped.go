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

// Ports implements Layer. Masked, x is the residual stream, F32; else what a norm gives.
func (l *GroupedAttention) Ports(s Size) (in, out []Port) {
	if l.Masked {
		return append(row("x", s, l.Q.In), maskPort(s)), row("y", s, l.Project.Out)
	}
	return operand("x", s, l.Q.In), row("y", s, l.Project.Out)
}

// shape is what the device is told; mask may be absent.
func (l *GroupedAttention) shape(b *Builder, mask device.Mem) device.AttentionShape {
	return device.AttentionShape{
		B: b.B, T: b.T, H: l.Heads, KV: l.KV, S: l.Q.Out / l.Heads, Bidirectional: l.Bidirectional, Window: l.Window, Mask: mask,
		Dropout: attentionDropout(b, l.Path, l.Rate, l.Heads),
	}
}

// rotate turns x (R,heads*S) by its positions, or a gradient back.
func (l *GroupedAttention) rotate(b *Builder, x device.Mem, heads int, inverse bool) device.Mem {
	if l.Theta == 0 {
		return x
	}
	y := b.Like(x)
	b.Do(&device.Rotate{Y: y, X: x, Rotation: device.Rotation{
		B: b.B, T: b.T, Heads: heads, S: l.Q.Out / l.Heads, Theta: l.Theta, Stretch: l.Stretch, Inverse: inverse,
	}})
	return y
}

// Emit implements Layer.
func (l *GroupedAttention) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	var mask device.Mem
	if l.Masked {
		mask = in[1]
	}
	x, shape := in[0], l.shape(b, mask)
	var qkv [3]device.Mem
	var backs [3]func(device.Mem) device.Mem
	for i, f := range [...]Linear{l.Q, l.K, l.V} {
		f.Narrow, f.wide = true, true
		qkv[i], backs[i] = f.emit(b, t.take(f), x)
	}
	q, k, v := l.rotate(b, qkv[0], l.Heads, false), l.rotate(b, qkv[1], l.KV, false), qkv[2]
	a, saved := b.Operand(l.Q.Out), attentionSaved(b, shape)
	attend(b, &device.Attention{Out: a, Saved: saved, Q: q, K: k, V: v, AttentionShape: shape})
	y, backProject := l.Project.emit(b, t, a)
	return []device.Mem{y}, func(dout []device.Mem) []device.Mem {
		da, dq, dk, dv := backProject(dout[0]), b.Like(q), b.Like(k), b.Like(v)
		b.Do(&device.AttentionBackward{DQ: dq, DK: dk, DV: dv, DOut: da, Q: q, K: k, V: v, Out: a, Saved: saved, AttentionShape: shape})
		dx := backs[0](l.rotate(b, dq, l.Heads, true))
		dx = b.add(dx, backs[1](l.rotate(b, dk, l.KV, true)))
		din := make([]device.Mem, len(in))
		din[0] = b.rounded(b.add(dx, backs[2](dv)), x)
		return din
	}
}
