package ref

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// columnBlock bounds the columns of C that one pass updates, so that C's part of a row and four rows of B stay in the
// first-level cache.
const columnBlock = 512

// matMul runs device.MatMul. Every element of C is summed in the order of k, starting from C, from the bias or
// from 0, whatever the blocking.
func (d *Device) matMul(m *device.MatMul) {
	cs, as, bs := d.result(0, m.C), d.read(1, m.A), d.read(2, m.B)
	if m.TransB {
		d.transposed = grow(d.transposed, m.K*m.N)
		transpose(d.transposed, bs, m.N, m.K)
		bs = d.transposed
	}
	startProduct(cs, &m.Product)
	// Element (i, k) of op(A) lies at i*rowStride + k*columnStride.
	rowStride, columnStride := m.K, 1
	if m.TransA {
		rowStride, columnStride = 1, m.M
	}
	for from := 0; from < m.N; from += columnBlock {
		to := min(from+columnBlock, m.N)
		for i := range m.M {
			productRow(cs[i*m.N+from:i*m.N+to], as[i*rowStride:], columnStride, bs[from:], m.N, m.K)
		}
	}
	d.finish(0, m.C)
}

// startProduct fills C (M,N) with what the product is added to.
func startProduct(cs []float32, m *device.Product) {
	switch {
	case m.Accumulate:
	case m.Bias.Absent():
		clear(cs)
	default:
		for i := range m.M {
			copy(cs[i*m.N:(i+1)*m.N], m.Bias.F32())
		}
	}
}

// productRow adds a (K elements, stride apart) times the rows of b (K rows, width apart) to c, four rows at a time.
func productRow(c, a []float32, stride int, b []float32, width, k int) {
	n := len(c)
	at := 0
	for ; at+4 <= k; at += 4 {
		a0, a1, a2, a3 := a[at*stride], a[(at+1)*stride], a[(at+2)*stride], a[(at+3)*stride]
		b0 := b[at*width:][:n]
		b1 := b[(at+1)*width:][:n]
		b2 := b[(at+2)*width:][:n]
		b3 := b[(at+3)*width:][:n]
		for j := range c {
			sum := c[j] + float32(a0*b0[j])
			sum += float32(a1 * b1[j])
			sum += float32(a2 * b2[j])
			sum += float32(a3 * b3[j])
			c[j] = sum
		}
	}
	for ; at < k; at++ {
		flat.Axpy(c, a[at*stride], b[at*width:][:n])
	}
}

// dot is the sum of x[i] y[i] in the order of i.
func dot(x, y []float32) float32 {
	y = y[:len(x)]
	var sum float32
	for i := range x {
		sum += float32(x[i] * y[i])
	}
	return sum
}

// transpose writes src (R,C) to dst (C,R), in tiles that fit the cache.
func transpose(dst, src []float32, rows, columns int) {
	const tile = 32
	for r0 := 0; r0 < rows; r0 += tile {
		for c0 := 0; c0 < columns; c0 += tile {
			for r := r0; r < min(r0+tile, rows); r++ {
				for c := c0; c < min(c0+tile, columns); c++ {
					dst[c*rows+r] = src[r*columns+c]
				}
			}
		}
	}
}

// sumRows runs device.SumRows.
func (d *Device) sumRows(o *device.SumRows) {
	columns, xs := o.Sum.Len(), d.read(0, o.X)
	sums := d.clearSums(columns)
	for r := range o.Rows() {
		for c, v := range xs[r*columns : (r+1)*columns] {
			sums[c] += float64(v)
		}
	}
	addRounded(o.Sum.F32(), sums)
}

// addRounded adds sums to y, each rounded first.
func addRounded(y []float32, sums []float64) {
	for i := range y {
		y[i] += float32(sums[i])
	}
}
