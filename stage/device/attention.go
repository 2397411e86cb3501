package device

// AttentionShape gives the shape of self-attention: B samples of T positions, H heads of S elements for the queries. KV heads
// hold keys and values, each for H/KV query heads (grouped-query attention: Ainslie et al. 2023).
//
// Row r of q (B*T rows) begins at element r*QStride and holds H heads one after the other; rows of k and v begin at
// r*KVStride and hold KV heads. So q, k and v may be parts of one tensor. dq, dk and dv lie as q, k and v do; out and dout
// are (B*T, H*S) without gaps.
type AttentionShape struct {
	B, T, H, S int
	KV         int // 0: H
	QStride    int // elements; 0: H*S
	KVStride   int // elements; 0: KV*S
	// Bidirectional lets every position see all others; else a position sees itself and those before it.
	Bidirectional bool
	// Window, when it is above 0, is how many positions a position sees at most: itself and the Window-1 before it (Beltagy et
	// al. 2020, section 3.1, looking back only). Not with Bidirectional.
	Window int
	// Mask (B,T) I32 is optional: keys where it is 0 are not seen by any query. A query that sees no key gives 0 and has no
	// gradient.
	Mask Mem
	// Dropout drops elements of the softmax and scales the others, as the operation Dropout does: that of sample b, head h, query i and key j
	// draws number First + ((b H + h) T + i) T + j. Rate, Key and First are all that counts; a Rate of 0 drops nothing.
	Dropout DropoutMask
}

// WithDefaults fills in what 0 stands for.
func (a AttentionShape) WithDefaults() AttentionShape {
	if a.KV == 0 {
		a.KV = a.H
	}
	if a.QStride == 0 {
		a.QStride = a.H * a.S
	}
	if a.KVStride == 0 {
		a.KVStride = a.KV * a.S
	}
	return a
}

// Queries and Keys are how many elements of q, and of k or v, an operation needs: up to the end of the last row.
func (a AttentionShape) Queries() int {
	a = a.WithDefaults()
	return (a.B*a.T-1)*a.QStride + a.H*a.S
}

// Keys is Queries for k and v.
func (a AttentionShape) Keys() int {
	a = a.WithDefaults()
	return (a.B*a.T-1)*a.KVStride + a.KV*a.S
}

// First is the first position that the query at position t sees.
func (a AttentionShape) First(t int) int {
	if a.Window == 0 {
		return 0
	}
	return max(0, t+1-a.Window)
}

// Pairs estimates how many pairs of a query and a key one head of one sample scores, by areas: T^2, half of it where a
// position sees only those before it, and T W - W^2/2 with a window of W positions.
func (a AttentionShape) Pairs() float64 {
	t, w := float64(a.T), float64(a.Window)
	switch {
	case a.Bidirectional:
		return t * t
	case a.Window > 0 && a.Window < a.T:
		return t*w - w*w/2
	}
	return t * t / 2
}

// Saved is how many float32 a forward keeps for its backward: the logarithm of every row's sum of exponentials, (B,H,T).
func (a AttentionShape) Saved() int { return a.B * a.H * a.T }

// products is the floating-point operations of so many products of scores.
func (a AttentionShape) products(n float64) float64 {
	return 2 * n * float64(a.B) * float64(a.H) * float64(a.S) * a.Pairs()
}

type (
	// Attention sets Out (B,T,H*S) = softmax(mask(Q K^T / sqrt(S))) V for every head. Saved is written for AttentionBackward; it is absent
	// when no backward follows. All operands but Saved and the mask are of one type, F32 or BF16.
	Attention struct {
		Out, Saved, Q, K, V Mem
		AttentionShape
	}
	// AttentionBackward sets DQ, DK and DV from DOut (B,T,H*S) and the forward's operands.
	AttentionBackward struct {
		DQ, DK, DV, DOut, Q, K, V, Out, Saved Mem
		AttentionShape
	}
)

// flops is two products of the scores that a position sees; of a backward four, without the scores that are computed again.
func (o *Attention) flops() float64         { return o.products(2) }
func (o *AttentionBackward) flops() float64 { return o.products(4) }

func (o *Attention) check(c checks) {
	o.AttentionShape.check(c, &o.Q, &o.K, &o.V)
	c.need(o.Q.typ, o.B*o.T*o.H*o.S, &o.Out)
	c.optional(F32, o.AttentionShape.Saved(), &o.Saved)
}

func (o *AttentionBackward) check(c checks) {
	o.AttentionShape.check(c, &o.Q, &o.K, &o.V)
	c.atLeast(o.Q.typ, o.Queries(), &o.DQ)
	c.atLeast(o.Q.typ, o.Keys(), &o.DK, &o.DV)
	c.need(o.Q.typ, o.B*o.T*o.H*o.S, &o.DOut, &o.Out)
	c.need(F32, o.AttentionShape.Saved(), &o.Saved)
}

// check checks the shape, q, k, v and the mask.
func (a *AttentionShape) check(c checks, q, k, v *Mem) {
	c.positive(&a.B, &a.T, &a.H, &a.S)
	full := a.WithDefaults()
	switch {
	case full.KV < 1 || a.H%full.KV != 0:
		c.fail("%d query heads over %d heads of keys, expected a multiple", a.H, full.KV)
	case !(a.Dropout.Rate >= 0 && a.Dropout.Rate < 1) || a.Dropout.First < 0:
		c.fail("a dropout rate of %v from number %d, expected 0 <= rate < 1, from at least 0", a.Dropout.Rate, a.Dropout.First)
	case a.Window < 0 || a.Window > 0 && a.Bidirectional:
		c.fail("a window of %d positions, bidirectional %t; expected 0, or more where a position sees only those before it", a.Window, a.Bidirectional)
	case full.QStride < a.H*a.S || full.KVStride < full.KV*a.S:
		c.fail("strides %d and %d, expected at least %d and %d", full.QStride, full.KVStride, a.H*a.S, full.KV*a.S)
	}
	c.atLeast(c.floatingType(q), full.Queries(), q)
	c.atLeast(q.typ, full.Keys(), k, v)
	c.optional(I32, a.B*a.T, &a.Mask)
}
