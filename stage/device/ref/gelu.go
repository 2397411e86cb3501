package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// geluCubic is the coefficient of the tanh form (Hendrycks and Gimpel 2016, section 2).
const geluCubic = 0.044715

var geluScale = math.Sqrt(2 / math.Pi)

// geluTanh is tanh(sqrt(2/pi) (x + 0.044715 x^3)).
func geluTanh(x float64) float64 {
	return tanh(geluScale * (x + float64(geluCubic*x*x*x)))
}

// GELU implements device.Device.
func (d *Device) GELU(y, x device.Mem) {
	ys, xs := d.typedPair("GELU", y, x)
	for i, v := range xs {
		x := float64(v)
		ys[i] = float32(0.5 * x * (1 + geluTanh(x)))
	}
	d.finish(0, y)
}

// GELUBackward implements device.Device.
func (d *Device) GELUBackward(dx, dy, x device.Mem) {
	device.Need("GELUBackward", "dy", dy, dx.Type(), dx.Len())
	dys := d.read(2, dy)
	dxs, xs := d.typedPair("GELUBackward", dx, x)
	for i, v := range xs {
		x := float64(v)
		t := geluTanh(x)
		inner := geluScale * (1 + float64(3*geluCubic*x*x))
		slope := 0.5*(1+t) + float64(0.5*x*(1-float64(t*t))*inner)
		dxs[i] = float32(float64(dys[i]) * slope)
	}
	d.finish(0, dx)
}
