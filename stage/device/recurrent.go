package device

import (
	"fmt"
	"math"
)

// LSTM gives the shape of one direction of one LSTM layer over B samples of T positions, with H cells.
type LSTM struct {
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

// Recurrent are the operations of recurrent networks: what LSTM translators and language models need beside products.
type Recurrent interface {
	// LSTM runs the recurrent part of an LSTM layer (Hochreiter and Schmidhuber 1997; the form of Gers et al. 2000, with
	// a forget gate and no peepholes), as PyTorch defines it, from a state of zeros. gates (B,T,4H) holds x W_ih^T and the
	// biases on entry, in the order input, forget, cell, output; the activated gates on return. weight is W_hh (4H,H).
	//
	//	i, f, o = sigmoid, g = tanh of gates_t + h_(t-1) W_hh^T;   c_t = f c_(t-1) + i g;   h_t = o tanh(c_t)
	//
	// out receives h_t, cells (B,T,H) c_t and previous (B,T,H) h_(t-1). Within 1e-5 sqrt(H).
	LSTM(out, gates, cells, previous, weight Mem, l LSTM)
	// LSTMBackward sets dgates (B,T,4H), the gradient of what gates held on entry of LSTM, from dout, given what LSTM wrote.
	// carry (2,B,H) is scratch. The gradients of weight, input and bias are products of dgates. Within 1e-5 sqrt(T H).
	LSTMBackward(dgates, carry, dout, gates, cells, weight Mem, l LSTM)

	// AdditiveAttention sets probabilities (B,T,T), query by key, to the softmax over the keys of sum_n v_n tanh(q_n + k_n)
	// (Bahdanau et al. 2015, appendix A.1.2), with q and k (B,T,N) and v (N). Within 1e-5 sqrt(N).
	AdditiveAttention(probabilities, q, k, v Mem, a Additive)
	// AdditiveAttentionBackward sets dq and dk (B,T,N) and dv (N) from the gradient of the probabilities, which it turns
	// into that of the scores, in place. Within 1e-5 sqrt(T N).
	AdditiveAttentionBackward(dq, dk, dv, dprobabilities, probabilities, q, k, v Mem, a Additive)
	// WeightNorm sets v = length (1) * direction / |direction| (Salimans and Kingma 2016, equation 2). Within 1e-5.
	WeightNorm(v, direction, length Mem)
	// WeightNormBackward adds the gradients of direction and length, given dv (equation 3). Within 1e-5.
	WeightNormBackward(ddirection, dlength, dv, direction, length Mem)

	// CopyColumns sets y[r, :Columns] = x[r, :Columns], or adds it (exact). y and x are F32 and end with their last column
	// copied, or later.
	CopyColumns(y, x Mem, c Columns)
	// DropRows drops whole rows out, all those of one id or none (Gal and Ghahramani 2016, section 4.2: embeddings): row r of
	// y (R,C) = x / (1 - Rate), or 0 where draw number ids[r] of the sequence of d.Key drops it, as Dropout says. y may be x.
	// d.First and d.Share have no meaning. Exact.
	DropRows(y, x, ids Mem, d Dropout)
}

// rows is B*T.
func (l LSTM) rows() int { return l.B * l.T }

func (l LSTM) check(op string) {
	if l.B < 1 || l.T < 1 || l.H < 1 || l.OutStride < l.H {
		panic(fmt.Sprintf("device: %s: B=%d T=%d H=%d OutStride=%d, expected positive numbers and rows of at least H", op, l.B, l.T,
			l.H, l.OutStride))
	}
	if !l.Mask.Absent() {
		Need(op, "mask", l.Mask, I32, l.rows())
	}
}

// span is the least length of a matrix with rows of `columns` elements, stride apart.
func span(rows, columns, stride int) int { return (rows-1)*stride + columns }

// CheckForward panics unless the operands of LSTM fit.
func (l LSTM) CheckForward(out, gates, cells, previous, weight Mem) {
	const op = "LSTM"
	l.check(op)
	NeedAtLeast(op, "out", out, F32, span(l.rows(), l.H, l.OutStride))
	Need(op, "gates", gates, F32, l.rows()*4*l.H)
	Need(op, "cells", cells, F32, l.rows()*l.H)
	Need(op, "previous", previous, F32, l.rows()*l.H)
	Need(op, "weight", weight, F32, 4*l.H*l.H)
}

// CheckBackward panics unless the operands of LSTMBackward fit.
func (l LSTM) CheckBackward(dgates, carry, dout, gates, cells, weight Mem) {
	const op = "LSTMBackward"
	l.check(op)
	Need(op, "dgates", dgates, F32, l.rows()*4*l.H)
	Need(op, "carry", carry, F32, 2*l.B*l.H)
	NeedAtLeast(op, "dout", dout, F32, span(l.rows(), l.H, l.OutStride))
	Need(op, "gates", gates, F32, l.rows()*4*l.H)
	Need(op, "cells", cells, F32, l.rows()*l.H)
	Need(op, "weight", weight, F32, 4*l.H*l.H)
}

func (a Additive) check(op string, probabilities, q, k, v Mem) {
	if a.B < 1 || a.T < 1 || a.N < 1 {
		panic(fmt.Sprintf("device: %s: B=%d T=%d N=%d, expected all positive", op, a.B, a.T, a.N))
	}
	Need(op, "probabilities", probabilities, F32, a.B*a.T*a.T)
	Need(op, "q", q, F32, a.B*a.T*a.N)
	Need(op, "k", k, F32, a.B*a.T*a.N)
	Need(op, "v", v, F32, a.N)
	if !a.Mask.Absent() {
		Need(op, "mask", a.Mask, I32, a.B*a.T)
	}
}

// CheckForward panics unless the operands of AdditiveAttention fit.
func (a Additive) CheckForward(probabilities, q, k, v Mem) {
	a.check("AdditiveAttention", probabilities, q, k, v)
}

// CheckBackward panics unless the operands of AdditiveAttentionBackward fit.
func (a Additive) CheckBackward(dq, dk, dv, dprobabilities, probabilities, q, k, v Mem) {
	const op = "AdditiveAttentionBackward"
	a.check(op, probabilities, q, k, v)
	a.check(op, dprobabilities, dq, dk, dv)
}

// CheckWeightNorm panics unless the operands of WeightNorm fit; of WeightNormBackward with the gradients in their places.
func CheckWeightNorm(op string, v, direction, length Mem) {
	Need(op, "v", v, F32, v.n)
	Need(op, "direction", direction, F32, v.n)
	Need(op, "length", length, F32, 1)
}

// Check panics unless the operands of CopyColumns fit.
func (c Columns) Check(y, x Mem) {
	const op = "CopyColumns"
	if c.Rows < 1 || c.Columns < 1 || c.YStride < c.Columns || c.XStride < c.Columns {
		panic(fmt.Sprintf("device: %s: R=%d C=%d, rows %d and %d elements apart, expected positive numbers and rows of at least C",
			op, c.Rows, c.Columns, c.YStride, c.XStride))
	}
	NeedAtLeast(op, "y", y, F32, span(c.Rows, c.Columns, c.YStride))
	NeedAtLeast(op, "x", x, F32, span(c.Rows, c.Columns, c.XStride))
}

// CheckRows panics unless the operands of DropRows fit and no id is below 0. It reads ids, so they must be in host memory.
func (d Dropout) CheckRows(y, x, ids Mem) {
	d.CheckRowsShape(y, x, ids)
	checkIDs("DropRows", "ids", ids.I32(), 0, math.MaxInt32)
}

// CheckRowsShape is CheckRows without a look at the ids.
func (d Dropout) CheckRowsShape(y, x, ids Mem) {
	const op = "DropRows"
	if !(d.Rate >= 0 && d.Rate < 1) || d.Rows < 1 || d.Columns < 1 {
		panic(fmt.Sprintf("device: %s: rate %v, R=%d C=%d, expected 0 <= rate < 1 and positive numbers", op, d.Rate, d.Rows, d.Columns))
	}
	Need(op, "y", y, F32, d.Rows*d.Columns)
	Need(op, "x", x, F32, d.Rows*d.Columns)
	Need(op, "ids", ids, I32, d.Rows)
}
