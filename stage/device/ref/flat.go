package ref

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// copy runs device.Copy.
func (d *Device) copy(o *device.Copy) {
	if o.Y.Type() == o.X.Type() {
		copy(device.HostBytes(o.Y), device.HostBytes(o.X))
		return
	}
	copy(d.result(0, o.Y), d.read(1, o.X))
	d.finish(0, o.Y)
}

func (d *Device) zero(o *device.Zero)   { clear(device.HostBytes(o.X)) }
func (d *Device) scale(o *device.Scale) { flat.Scale(o.X.F32(), o.A) }
func (d *Device) axpy(o *device.Axpy)   { flat.Axpy(o.Y.F32(), o.A, o.X.F32()) }
func (d *Device) lerp(o *device.Lerp)   { flat.Lerp(o.Y.F32(), o.A, o.X.F32()) }
func (d *Device) mul(o *device.Mul)     { flat.Mul(o.Y.F32(), o.X.F32()) }

func (d *Device) squaredNorm(o *device.SquaredNorm) { o.Sum.F64()[0] += inner(o.X, o.X) }

// add runs device.Add.
func (d *Device) add(o *device.Add) {
	as, bs, outs := d.read(1, o.A), d.read(2, o.B), d.result(0, o.Out)
	for i := range outs {
		outs[i] = as[i] + bs[i]
	}
	d.finish(0, o.Out)
}

// inner is the sum of x[i] y[i] in the order of the index; products of two float32 are exact in float64.
func inner(x, y device.Mem) (sum float64) {
	ys := y.F32()
	for i, v := range x.F32() {
		sum += float64(float64(v) * float64(ys[i]))
	}
	return sum
}
