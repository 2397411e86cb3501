//go:build cuda && cgo && linux && amd64

package cuda

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/blas"
)

// The rows and columns of C that a block of the product kernel computes.
const productTile = 64

func (d *Device) matMul(o *device.MatMul) {
	if d.blas != nil && blas.Takes(o) {
		d.multiply(o)
		return
	}
	d.launch("product").typed(o.C).typed(o.A).typed(o.B).mem(o.Bias).int(o.M).int(o.N).int(o.K).flag(o.TransA).flag(o.TransB).
		flag(o.Accumulate).on(blocks(o.N, productTile), blocks(o.M, productTile), blockThreads)
}

// multiply runs a product on cuBLAS. With a bias it is added to rows of the bias, or, where C is BF16, to nothing in wider scratch: C is
// rounded once.
func (d *Device) multiply(o *device.MatMul) {
	n := o.C.Len()
	switch {
	case o.Bias.Absent():
		d.check("multiply", d.blas.MatMul(o.C, o, o.Accumulate))
	case o.C.Type() == device.F32:
		d.launch("fill_rows").mem(o.C).mem(o.Bias).int(o.N).int(n).each(n)
		d.check("multiply", d.blas.MatMul(o.C, o, true))
	default:
		if wide, ok := d.floats(n); ok {
			d.check("multiply", d.blas.MatMul(wide, o, false))
			d.launch("round_rows").mem(o.C).mem(wide).mem(o.Bias).int(o.N).int(n).each(n)
		}
	}
}

// floats is scratch for n floats, as large as the largest asked for. It is false where there is no memory for it.
func (d *Device) floats(n int) (device.Mem, bool) {
	if d.scratch.Len() < n {
		d.Free(d.scratch)
		m, err := d.Alloc(device.F32, n)
		if d.scratch = m; err != nil {
			d.check("multiply", err)
			return m, false
		}
	}
	return d.scratch.Slice(0, n), true
}
