package ref

import "github.com/avgpipe/avgpipe/stage/device"

// pair is the elements of y and of x, which are equally many.
func pair(y, x device.Mem) ([]float32, []float32) {
	ys := y.F32()
	return ys, x.F32()[:len(ys)]
}

// copy runs device.Copy.
func (d *Device) copy(y, x device.Mem) {
	if y.Type() == x.Type() {
		copy(device.HostBytes(y), device.HostBytes(x))
		return
	}
	copy(d.result(0, y), d.read(1, x))
	d.finish(0, y)
}

// scale runs device.Scale.
func (d *Device) scale(x device.Mem, a float32) {
	xs := x.F32()
	for i := range xs {
		xs[i] *= a
	}
}

// lerp runs device.Lerp.
func (d *Device) lerp(y device.Mem, a float32, x device.Mem) {
	if a == 1 {
		d.copy(y, x)
		return
	}
	ys, xs := pair(y, x)
	for i := range ys {
		ys[i] += float32(a * (xs[i] - ys[i]))
	}
}

// mul runs device.Mul.
func (d *Device) mul(y, x device.Mem) {
	ys, xs := pair(y, x)
	for i := range ys {
		ys[i] *= xs[i]
	}
}

// add runs device.Add.
func (d *Device) add(out, a, b device.Mem) {
	as, bs := d.read(1, a), d.read(2, b)
	outs := d.result(0, out)
	for i := range outs {
		outs[i] = as[i] + bs[i]
	}
	d.finish(0, out)
}

// inner is the sum of x[i] y[i] in the order of the index; products of two float32 are exact in float64.
func inner(x, y device.Mem) (sum float64) {
	xs, ys := pair(x, y)
	for i := range xs {
		sum += float64(float64(xs[i]) * float64(ys[i]))
	}
	return sum
}
