package device

import (
	"fmt"
	"math/bits"
)

// Dropout says which elements of a matrix (R,C) are dropped. Element (r,c) draws number First + (r/Share) C + c of the
// sequence that Key begins, so that a mask is never stored: the backward draws it again.
type Dropout struct {
	Rate  float32 // the probability that an element becomes 0: 0 <= Rate < 1
	Key   uint64  // selects one of 2^64 independent sequences
	First int     // the number, in the sequence, that the first row begins with: its row in the batch times C
	// Rows and Columns are R and C; Rows is a multiple of Share.
	Rows, Columns int
	// Share is how many consecutive rows share a mask: 1, or T for one mask at all positions of a sample (variational
	// dropout: Gal and Ghahramani 2016, section 4).
	Share int
}

// Random is the operation that draws.
type Random interface {
	// Dropout sets y (R,C) = x / (1 - Rate), or 0 where an element is dropped (Srivastava et al. 2014, section 10, scaled
	// during training). x and y are F32 or both BF16; y may be x. The same call on dy is the backward. Exact on every
	// device: 1/(1-Rate) is rounded before the product, and an element is dropped where its draw lies below Rate 2^32.
	Dropout(y, x Mem, d Dropout)
}

// Check panics unless the operands of Dropout fit.
func (d Dropout) Check(y, x Mem) {
	const op = "Dropout"
	if !(d.Rate >= 0 && d.Rate < 1) {
		panic(fmt.Sprintf("device: %s: a rate of %v, expected 0 <= rate < 1", op, d.Rate))
	}
	if d.Rows < 1 || d.Columns < 1 || d.Share < 1 || d.Rows%d.Share != 0 || d.First < 0 {
		panic(fmt.Sprintf("device: %s: R=%d C=%d Share=%d First=%d, expected positive numbers, R a multiple of Share, First at least 0",
			op, d.Rows, d.Columns, d.Share, d.First))
	}
	if x.typ != BF16 {
		Need(op, "x", x, F32, d.Rows*d.Columns)
	}
	Need(op, "x", x, x.typ, d.Rows*d.Columns)
	Need(op, "y", y, x.typ, d.Rows*d.Columns)
}

// Derived are the numbers that every device uses: a draw below threshold drops its element; the others are scaled.
func (d Dropout) Derived() (threshold uint32, scale float32) {
	return uint32(float64(d.Rate) * (1 << 32)), float32(1 / (1 - float64(d.Rate)))
}

// Draws are numbers 4 block to 4 block + 3 of the sequence of key: Philox4x32-10 (Salmon et al. 2011, section 3.3) of the
// counter (block, 0).
func Draws(key, block uint64) [4]uint32 {
	const (
		m0, m1 = 0xd2511f53, 0xcd9e8d57
		w0, w1 = 0x9e3779b9, 0xbb67ae85
	)
	c := [4]uint32{uint32(block), uint32(block >> 32), 0, 0}
	k0, k1 := uint32(key), uint32(key>>32)
	for range 10 {
		hi0, lo0 := bits.Mul32(m0, c[0])
		hi1, lo1 := bits.Mul32(m1, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ k0, lo1, hi0 ^ c[3] ^ k1, lo0}
		k0, k1 = k0+w0, k1+w1
	}
	return c
}
