package device

import "fmt"

// Attention gives the shape of self-attention: B samples of T positions, H heads of S elements for the queries. KV heads
// hold keys and values, each for H/KV query heads (grouped-query attention: Ainslie et al. 2023).
//
// Row r of q (B*T rows) begins at element r*QStride and holds H heads one after the other; rows of k and v begin at
// r*KVStride and hold KV heads. So q, k and v may be parts of one tensor. dq, dk and dv lie as q, k and v do; out and dout
// are (B*T, H*S) without gaps.
type Attention struct {
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
	// Dropout drops elements of the softmax and scales the others, as Random does: that of sample b, head h, query i and key j
	// draws number First + ((b H + h) T + i) T + j. Rate, Key and First are all that counts; a Rate of 0 drops nothing.
	Dropout Dropout
}

// WithDefaults fills in what 0 stands for.
func (a Attention) WithDefaults() Attention {
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
func (a Attention) Queries() int {
	a = a.WithDefaults()
	return (a.B*a.T-1)*a.QStride + a.H*a.S
}

// Keys is Queries for k and v.
func (a Attention) Keys() int {
	a = a.WithDefaults()
	return (a.B*a.T-1)*a.KVStride + a.KV*a.S
}

// First is the first position that the query at position t sees.
func (a Attention) First(t int) int {
	if a.Window == 0 {
		return 0
	}
	return max(0, t+1-a.Window)
}

// Pairs estimates how many pairs of a query and a key one head of one sample scores, by areas: T^2, half of it where a
// position sees only those before it, and T W - W^2/2 with a window of W positions.
func (a Attention) Pairs() float64 {
	t, w := float64(a.T), float64(a.Window)
	switch {
	case a.Bidirectional:
		return t * t
	case a.Window > 0 && a.Window < a.T:
		return t*w - w*w/2
	}
	return t * t / 2
}

// Attentions is attention between a projection to queries, keys and values and one of the result.
type Attentions interface {
	// AttentionSaved is how many float32 Attention keeps for its backward, per call.
	AttentionSaved(a Attention) int
	// Attention sets out (B,T,H*S) = softmax(mask(q k^T / sqrt(S))) v for every head. saved (AttentionSaved) is written for
	// AttentionBackward; absent when no backward follows. All operands but saved and the mask are of one type.
	Attention(out, saved, q, k, v Mem, a Attention)
	// AttentionBackward sets dq, dk and dv from dout (B,T,H*S) and the forward's operands.
	AttentionBackward(dq, dk, dv, dout, q, k, v, out, saved Mem, a Attention)
}

// CheckForward panics unless the operands of Attention fit; saved may be absent, else it has savedLen elements.
func (a Attention) CheckForward(out, saved, q, k, v Mem, savedLen int) {
	const op = "Attention"
	a.check(op)
	t := a.operands(op, q, k, v)
	Need(op, "out", out, t, a.B*a.T*a.H*a.S)
	if !saved.Absent() {
		Need(op, "saved", saved, F32, savedLen)
	}
}

// CheckBackward panics unless the operands of AttentionBackward fit.
func (a Attention) CheckBackward(dq, dk, dv, dout, q, k, v, out, saved Mem, savedLen int) {
	const op = "AttentionBackward"
	a.check(op)
	t := a.operands(op, q, k, v)
	NeedAtLeast(op, "dq", dq, t, a.Queries())
	NeedAtLeast(op, "dk", dk, t, a.Keys())
	NeedAtLeast(op, "dv", dv, t, a.Keys())
	Need(op, "dout", dout, t, a.B*a.T*a.H*a.S)
	Need(op, "out", out, t, a.B*a.T*a.H*a.S)
	Need(op, "saved", saved, F32, savedLen)
}

// operands checks q, k, v and the mask, and returns the type of all tensors.
func (a Attention) operands(op string, q, k, v Mem) Type {
	t := q.typ
	NeedAtLeast(op, "q", q, floating(op, "q", t), a.Queries())
	NeedAtLeast(op, "k", k, t, a.Keys())
	NeedAtLeast(op, "v", v, t, a.Keys())
	if !a.Mask.Absent() {
		Need(op, "mask", a.Mask, I32, a.B*a.T)
	}
	return t
}

// check panics unless the shape of a is positive in every dimension and its strides hold the heads.
func (a Attention) check(op string) {
	a = a.WithDefaults()
	if a.B < 1 || a.T < 1 || a.H < 1 || a.S < 1 || a.KV < 1 {
		panic(fmt.Sprintf("device: %s: shape B=%d T=%d H=%d KV=%d S=%d, expected all positive", op, a.B, a.T, a.H, a.KV, a.S))
	}
	if a.H%a.KV != 0 {
		panic(fmt.Sprintf("device: %s: %d query heads over %d heads of keys, expected a multiple", op, a.H, a.KV))
	}
	if !(a.Dropout.Rate >= 0 && a.Dropout.Rate < 1) || a.Dropout.First < 0 {
		panic(fmt.Sprintf("device: %s: a dropout rate of %v from number %d, expected 0 <= rate < 1, from at least 0", op, a.Dropout.Rate,
			a.Dropout.First))
	}
	if a.Window < 0 || a.Window > 0 && a.Bidirectional {
		panic(fmt.Sprintf("device: %s: a window of %d positions, bidirectional %t; expected 0, or more where a position sees only those before it",
			op, a.Window, a.Bidirectional))
	}
	if a.QStride < a.H*a.S || a.KVStride < a.KV*a.S {
		panic(fmt.Sprintf("device: %s: strides %d and %d, expected at least %d and %d", op, a.QStride, a.KVStride, a.H*a.S, a.KV*a.S))
	}
}
