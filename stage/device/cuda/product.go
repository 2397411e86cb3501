//go:build cuda && cgo && linux && amd64

package cuda

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/blas"
)

// The rows and columns of C that a block of a product kernel computes.
const productTile = 128

func (d *Device) matMul(o *device.MatMul) {
	if d.blas != nil && blas.Takes(o) {
		d.multiply(o)
		return
	}
	if o.A.Type() == device.BF16 && o.B.Type() == device.BF16 {
		d.launch("product_mma").typed(o.C).mem(o.A).mem(o.B).product(o)
		return
	}
	d.launch("product").typed(o.C).typed(o.A).typed(o.B).product(o)
}

// product are the arguments that our own kernels end with; they run.
func (c *call) product(o *device.MatMul) {
	c.mem(o.Bias).int(o.M).int(o.N).int(o.K).flag(o.TransA).flag(o.TransB).flag(o.Accumulate).
		on(blocks(o.N, productTile), blocks(o.M, productTile), blockThreads)
}

// widens reports whether the sums of a product go to scratch, and are rounded with the bias.
func (d *Device) widens(o *device.MatMul) bool {
	return d.blas != nil && blas.Takes(o) && !o.Bias.Absent() && o.C.Type() != device.F32
}

// multiply runs a product on cuBLAS. A bias is added in the same pass where cublasLt takes the shape. Else the product is added to rows of the
// bias, or, where C is BF16, to nothing in wider scratch: C is rounded once either way.
func (d *Device) multiply(o *device.MatMul) {
	n := o.C.Len()
	switch {
	case o.Bias.Absent():
		d.check("multiply", d.blas.MatMul(o.C, o, o.Accumulate))
	case d.multiplyBiased(o):
	case o.C.Type() == device.F32:
		d.fillRows(o.C, o.Bias)
		d.check("multiply", d.blas.MatMul(o.C, o, true))
	default:
		if s, ok := d.scratchOf(o); ok {
			wide := s.take(device.F32, n)
			d.check("multiply", d.blas.MatMul(wide, o, false))
			d.launch("add_bias").typed(o.C).mem(wide).mem(o.Bias).int(o.N).packRows(o.M, o.N)
		}
	}
}

// multiplyBiased is multiply of a product with a bias in one pass. It is false where there is no such. The bias is of C's type there.
func (d *Device) multiplyBiased(o *device.MatMul) bool {
	bias := o.Bias
	if o.C.Type() == device.BF16 {
		s, ok := d.scratchOf(o)
		if !ok {
			return true // the failure is kept
		}
		bias = s.take(device.BF16, o.N)
	}
	if !d.blas.TakesBias(o, bias) {
		return false
	}
	if bias != o.Bias {
		d.copyTo(bias, o.Bias)
	}
	d.check("multiply", d.blas.Biased(o, bias))
	return true
}

// fillRows sets each row of c to a bias: what is added to it has one.
func (d *Device) fillRows(c, bias device.Mem) {
	d.launch("add_bias").typed(c).mem(device.Mem{}).mem(bias).int(bias.Len()).packRows(c.Len()/bias.Len(), bias.Len())
}
