package device

import (
	"fmt"
)

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

func (l LSTMShape) check(op string) {
	if l.B < 1 || l.T < 1 || l.H < 1 || l.OutStride < l.H {
		panic(fmt.Sprintf("device: %s: B=%d T=%d H=%d OutStride=%d, expected positive numbers and rows of at least H", op, l.B, l.T,
			l.H, l.OutStride))
	}
	if !l.Mask.Absent() {
		need(op, "mask", l.Mask, I32, l.rows())
	}
}

// span is the least length of a matrix with rows of `columns` elements, stride apart.
func span(rows, columns, stride int) int { return (rows-1)*stride + columns }

// flops is a product with the recurrent weights at every position.
func (l LSTMShape) flops() float64 { return 8 * float64(l.B*l.T) * float64(l.H) * float64(l.H) }

// Check implements Op.
func (o *LSTM) Check() {
	const op = "LSTM"
	o.check(op)
	needAtLeast(op, "out", o.Out, F32, span(o.rows(), o.H, o.OutStride))
	need(op, "gates", o.Gates, F32, o.rows()*4*o.H)
	need(op, "cells", o.Cells, F32, o.rows()*o.H)
	needFloating(op, "weight", o.Weight, 4*o.H*o.H)
	need(op, "previous", o.Previous, o.Weight.typ, o.rows()*o.H)
	needOptional(op, "before", o.Before, o.B*o.H)
}

// Check implements Op.
func (o *LSTMBackward) Check() {
	const op = "LSTMBackward"
	o.check(op)
	need(op, "dgates", o.DGates, F32, o.rows()*4*o.H)
	need(op, "carry", o.Carry, F32, 2*o.B*o.H)
	needAtLeast(op, "dout", o.DOut, F32, span(o.rows(), o.H, o.OutStride))
	need(op, "gates", o.Gates, F32, o.rows()*4*o.H)
	need(op, "cells", o.Cells, F32, o.rows()*o.H)
	needFloating(op, "weight", o.Weight, 4*o.H*o.H)
}

func (a Additive) check(op string, probabilities, q, k, v Mem) {
	if a.B < 1 || a.T < 1 || a.N < 1 {
		panic(fmt.Sprintf("device: %s: B=%d T=%d N=%d, expected all positive", op, a.B, a.T, a.N))
	}
	need(op, "probabilities", probabilities, F32, a.B*a.T*a.T)
	need(op, "q", q, F32, a.B*a.T*a.N)
	need(op, "k", k, F32, a.B*a.T*a.N)
	need(op, "v", v, F32, a.N)
	if !a.Mask.Absent() {
		need(op, "mask", a.Mask, I32, a.B*a.T)
	}
}

// flops counts a hyperbolic tangent as 32 floating-point operations.
func (a Additive) flops() float64 {
	return 32 * float64(a.B) * float64(a.T) * float64(a.T) * float64(a.N)
}

// Check implements Op.
func (o *AdditiveAttention) Check() { o.check("AdditiveAttention", o.Probabilities, o.Q, o.K, o.V) }

// Check implements Op.
func (o *AdditiveAttentionBackward) Check() {
	const op = "AdditiveAttentionBackward"
	o.check(op, o.Probabilities, o.Q, o.K, o.V)
	o.check(op, o.DProbabilities, o.DQ, o.DK, o.DV)
}

// Check implements Op.
func (o *WeightNorm) Check() { needDirection("WeightNorm", o.V, o.Direction, o.Length) }

// Check implements Op.
func (o *WeightNormBackward) Check() {
	const op = "WeightNormBackward"
	needDirection(op, o.DV, o.Direction, o.Length)
	needDirection(op, o.DV, o.DDirection, o.DLength)
}

func needDirection(op string, v, direction, length Mem) {
	needF32(op, v.n, v, direction)
	need(op, "length", length, F32, 1)
}

// Check implements Op.
func (o *CopyColumns) Check() {
	const op = "CopyColumns"
	c := o.Columns
	if c.Rows < 1 || c.Columns < 1 || c.YStride < c.Columns || c.XStride < c.Columns {
		panic(fmt.Sprintf("device: %s: R=%d C=%d, rows %d and %d elements apart, expected positive numbers and rows of at least C",
			op, c.Rows, c.Columns, c.YStride, c.XStride))
	}
	needAtLeast(op, "y", o.Y, F32, span(c.Rows, c.Columns, c.YStride))
	needAtLeast(op, "x", o.X, F32, span(c.Rows, c.Columns, c.XStride))
}
