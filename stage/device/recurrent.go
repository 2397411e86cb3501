package device

// LSTMShape gives the shape of one direction of one LSTM layer over B samples of T positions, with H cells.
type LSTMShape struct {
	B, T, H int
	// Reverse runs from the last position to the first.
	Reverse bool
	// OutStride is how many elements lie between the starts of two rows of out and dout: H, or 2H where two directions share
	// the rows.
	OutStride int
	// Mask, optional, is (B,T) I32: at a position with 0 the output and the state are 0, so that a sample's padding, before
	// its first position or after its last, is as if it were not there.
	Mask Mem
}

// Additive gives the shape of additive attention from T queries to T keys in each of B samples, through N units.
type Additive struct {
	B, T, N int
	// Mask, optional, is (B,T) I32: keys with 0 are not attended to. Where all are 0 the probabilities are, and there is no
	// gradient.
	Mask Mem
}

// Columns says which columns of two matrices of Rows rows CopyColumns takes.
type Columns struct {
	Rows, Columns    int
	YStride, XStride int  // elements from one row to the next; at least Columns
	Add              bool // add to y instead of overwriting it
}

// Operations of recurrent networks: what LSTM translators and language models need beside products.
type (
	// LSTM runs the recurrent part of an LSTM layer (Hochreiter and Schmidhuber 1997; the form of Gers et al. 2000, with a forget gate
	// and no peepholes), as PyTorch defines it, from a state of zeros. Gates (B,T,4H) holds x W_ih^T and the biases on entry, in the order
	// input, forget, cell, output; the activated gates on return. Weight is W_hh (4H,H).
	//
	//	i, f, o = sigmoid, g = tanh of gates_t + h_(t-1) W_hh^T;   c_t = f c_(t-1) + i g;   h_t = o tanh(c_t)
	//
	// Out receives h_t, Cells (B,T,H) c_t and Previous (B,T,H) h_(t-1). Weight and Previous are F32, or both BF16: then h_(t-1) is rounded
	// before it is multiplied. All others are F32. Within 1e-5 sqrt(H). Where a sequence continues, Before (B,H) holds the cells before the
	// first position, and the gates of the first position h W_hh^T of the output before it as well; Previous is 0 there.
	LSTM struct {
		Out, Gates, Cells, Previous, Weight, Before Mem
		LSTMShape
	}
	// LSTMBackward sets DGates (B,T,4H), the gradient of what Gates held on entry of LSTM, from DOut, given what LSTM wrote. Carry (2,B,H)
	// is scratch. The gradients of weight, input and bias are products of DGates, which is rounded before it is multiplied by a Weight in
	// BF16. Within 1e-5 sqrt(T H).
	LSTMBackward struct {
		DGates, Carry, DOut, Gates, Cells, Weight Mem
		LSTMShape
	}

	// AdditiveAttention sets Probabilities (B,T,T), query by key, to the softmax over the keys of sum_n v_n tanh(q_n + k_n) (Bahdanau et
	// al. 2015, appendix A.1.2), with Q and K (B,T,N) and V (N). Within 1e-5 sqrt(N).
	AdditiveAttention struct {
		Probabilities, Q, K, V Mem
		Additive
	}
	// AdditiveAttentionBackward sets DQ and DK (B,T,N) and DV (N) from the gradient of the probabilities, which it turns into that of the
	// scores, in place. Within 1e-5 sqrt(T N).
	AdditiveAttentionBackward struct {
		DQ, DK, DV, DProbabilities, Probabilities, Q, K, V Mem
		Additive
	}
	// WeightNorm sets V = Length (1) * Direction / |Direction| (Salimans and Kingma 2016, equation 2). Within 1e-5.
	WeightNorm struct{ V, Direction, Length Mem }
	// WeightNormBackward adds the gradients of Direction and Length, given DV (equation 3). Within 1e-5.
	WeightNormBackward struct{ DDirection, DLength, DV, Direction, Length Mem }

	// CopyColumns sets y[r, :Columns] = x[r, :Columns], or adds it (exact). Y and X are F32 and end with their last column copied, or
	// later.
	CopyColumns struct {
		Y, X Mem
		Columns
	}
)

// rows is B*T.
func (l LSTMShape) rows() int { return l.B * l.T }

func (l *LSTMShape) check(c checks) {
	if c.positive(&l.B, &l.T, &l.H); l.OutStride < l.H {
		c.fail("rows %d elements apart, expected at least H, %d", l.OutStride, l.H)
	}
	c.optional(I32, l.rows(), &l.Mask)
}

// span is the least length of a matrix with rows of `columns` elements, stride apart.
func span(rows, columns, stride int) int { return (rows-1)*stride + columns }

// flops is a product with the recurrent weights at every position; the gradient of the weights is a product of its own.
func (l LSTMShape) flops() float64 { return 8 * float64(l.B*l.T) * float64(l.H) * float64(l.H) }

func (o *LSTM) check(c checks) {
	o.LSTMShape.check(c)
	c.atLeast(F32, span(o.rows(), o.H, o.OutStride), &o.Out)
	c.need(F32, o.rows()*4*o.H, &o.Gates)
	c.need(F32, o.rows()*o.H, &o.Cells)
	c.floating(4*o.H*o.H, &o.Weight)
	c.need(o.Weight.typ, o.rows()*o.H, &o.Previous)
	c.optional(F32, o.B*o.H, &o.Before)
}

func (o *LSTMBackward) check(c checks) {
	o.LSTMShape.check(c)
	c.need(F32, o.rows()*4*o.H, &o.DGates, &o.Gates)
	c.need(F32, 2*o.B*o.H, &o.Carry)
	c.atLeast(F32, span(o.rows(), o.H, o.OutStride), &o.DOut)
	c.need(F32, o.rows()*o.H, &o.Cells)
	c.floating(4*o.H*o.H, &o.Weight)
}

// flops counts a hyperbolic tangent as 32 floating-point operations.
func (a Additive) flops() float64 {
	return 32 * float64(a.B) * float64(a.T) * float64(a.T) * float64(a.N)
}

func (o *AdditiveAttentionBackward) flops() float64 { return 2 * o.Additive.flops() }

func (a *Additive) check(c checks, probabilities, q, k, v *Mem) {
	c.positive(&a.B, &a.T, &a.N)
	c.need(F32, a.B*a.T*a.T, probabilities)
	c.need(F32, a.B*a.T*a.N, q, k)
	c.need(F32, a.N, v)
	c.optional(I32, a.B*a.T, &a.Mask)
}

func (o *AdditiveAttention) check(c checks) {
	o.Additive.check(c, &o.Probabilities, &o.Q, &o.K, &o.V)
}

func (o *AdditiveAttentionBackward) check(c checks) {
	o.Additive.check(c, &o.Probabilities, &o.Q, &o.K, &o.V)
	o.Additive.check(c, &o.DProbabilities, &o.DQ, &o.DK, &o.DV)
}

func (o *WeightNorm) check(c checks) {
	c.need(F32, o.V.n, &o.V, &o.Direction)
	c.need(F32, 1, &o.Length)
}

func (o *WeightNormBackward) check(c checks) {
	c.need(F32, o.DV.n, &o.DV, &o.Direction, &o.DDirection)
	c.need(F32, 1, &o.Length, &o.DLength)
}

func (o *CopyColumns) check(c checks) {
	s := &o.Columns
	if c.positive(&s.Rows, &s.Columns); s.YStride < s.Columns || s.XStride < s.Columns {
		c.fail("rows %d and %d elements apart, expected at least %d", s.YStride, s.XStride, s.Columns)
	}
	c.atLeast(F32, span(s.Rows, s.Columns, s.YStride), &o.Y)
	c.atLeast(F32, span(s.Rows, s.Columns, s.XStride), &o.X)
}
