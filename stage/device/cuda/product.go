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

// multiply runs a product on cuBLAS. With a bias it is added to rows of the bias, or, where C is BF16, to nothing in wider scratch: C is
// rounded once.
func (d *Device) multiply(o *device.MatMul) {
	n := o.C.Len()
	switch {
	case o.Bias.Absent():
		d.check("multiply", d.blas.MatMul(o.C, o, o.Accumulate))
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

// fillRows sets each row of c to a bias: what is added to it has one.
func (d *Device) fillRows(c, bias device.Mem) {
	d.launch("add_bias").typed(c).mem(device.Mem{}).mem(bias).int(bias.Len()).packRows(c.Len()/bias.Len(), bias.Len())
}
