package ref

import "github.com/avgpipe/avgpipe/stage/device"

// pair returns the elements of y and of x, which must have equally many.
func pair(op string, y, x device.Mem) ([]float32, []float32) {
	device.Need(op, "x", x, device.F32, y.Len())
	ys := y.F32()
	return ys, x.F32()[:len(ys)]
}

// Zero implements device.Device.
func (d *Device) Zero(x device.Mem) { clear(device.HostBytes(x)) }

// Copy implements device.Device.
func (d *Device) Copy(y, x device.Mem) {
	device.Need("Copy", "x", x, y.Type(), y.Len())
	copy(device.HostBytes(y), device.HostBytes(x))
}

// Scale implements device.Device.
func (d *Device) Scale(x device.Mem, a float32) {
	xs := x.F32()
	for i := range xs {
		xs[i] *= a
	}
}

// Axpy implements device.Device.
func (d *Device) Axpy(y device.Mem, a float32, x device.Mem) {
	ys, xs := pair("Axpy", y, x)
	for i := range ys {
		ys[i] += float32(a * xs[i])
	}
}

// Lerp implements device.Device.
func (d *Device) Lerp(y device.Mem, a float32, x device.Mem) {
	if a == 1 {
		d.Copy(y, x)
		return
	}
	ys, xs := pair("Lerp", y, x)
	for i := range ys {
		ys[i] += float32(a * (xs[i] - ys[i]))
	}
}

// Mul implements device.Device.
func (d *Device) Mul(y, x device.Mem) {
	ys, xs := pair("Mul", y, x)
	for i := range ys {
		ys[i] *= xs[i]
	}
}

// Add implements device.Device.
func (d *Device) Add(out, a, b device.Mem) {
	device.NeedFloating("Add", "a", a, out.Len())
	device.NeedFloating("Add", "b", b, out.Len())
	device.NeedFloating("Add", "out", out, out.Len())
	as, bs := d.read(1, a), d.read(2, b)
	outs := d.result(0, out)
	for i := range outs {
		outs[i] = as[i] + bs[i]
	}
	d.finish(0, out)
}

// Dot implements device.Device. The sum runs in the order of the index; products of two float32 are exact in float64.
func (d *Device) Dot(x, y device.Mem) float64 {
	xs, ys := pair("Dot", x, y)
	var sum float64
	for i := range xs {
		sum += float64(float64(xs[i]) * float64(ys[i]))
	}
	return sum
}
