package device

import "math/bits"

// DropoutMask says which elements of a matrix (R,C) are dropped. Element (r,c) draws number First + (r/Share) C + c of the
// sequence that Key begins, so that a mask is never stored: the backward draws it again.
type DropoutMask struct {
	Rate  float32 // the probability that an element becomes 0: 0 <= Rate < 1
	Key   uint64  // selects one of 2^64 independent sequences
	First int     // the number, in the sequence, that the first row begins with: its row in the batch times C
	// Stream and PerSample give Key and First in a program: Mix(Args.Key ^ Stream), and PerSample numbers for each sample before.
	Stream    uint64
	PerSample int
	// Rows and Columns are R and C; Rows is a multiple of Share.
	Rows, Columns int
	// Share is how many consecutive rows share a mask: 1, or T for one mask at all positions of a sample (variational
	// dropout: Gal and Ghahramani 2016, section 4).
	Share int
}

// Dropout sets Y (R,C) = X / (1 - Rate), or 0 where an element is dropped (Srivastava et al. 2014, section 10, scaled during training).
// X and Y are F32 or both BF16; Y may be X. The same operation on the gradient is the backward. Exact on every device: 1/(1-Rate) is
// rounded before the product, and an element is dropped where its draw lies below Rate 2^32.
//
// With IDs (R) it drops whole rows of F32 out, all those of one id or none (Gal and Ghahramani 2016, section 4.2: embeddings): row r is
// dropped where draw number IDs[r] says so. First and Share have no meaning then.
type Dropout struct {
	Y, X, IDs Mem
	DropoutMask
}

func (o *Dropout) check(c checks) {
	n := o.Rows * o.Columns
	if !(o.Rate >= 0 && o.Rate < 1) {
		c.fail("a rate of %v, expected 0 <= rate < 1", o.Rate)
	}
	c.positive(&o.Rows, &o.Columns)
	if !o.IDs.Absent() {
		c.need(F32, n, &o.X)
		c.need(I32, o.Rows, &o.IDs)
	} else if o.Share < 1 || o.Rows%o.Share != 0 || o.First < 0 {
		c.fail("Rows=%d Share=%d First=%d, expected a multiple of Share, First at least 0", o.Rows, o.Share, o.First)
	}
	c.floating(n, &o.X)
	c.need(o.X.typ, n, &o.Y)
}

// Derived are the numbers that every device uses: a draw below threshold drops its element; the others are scaled.
func (d DropoutMask) Derived() (threshold uint32, scale float32) {
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
