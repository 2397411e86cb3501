package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// RMSNorm implements device.Device.
func (d *Device) RMSNorm(y, rstd, x, weight device.Mem, rows, columns int, epsilon float32) {
	device.CheckRMSNorm(y, rstd, x, weight, rows, columns)
	ys, xs, ws := d.result(0, y), x.F32(), weight.F32()
	for r := range rows {
		in, out := xs[r*columns:(r+1)*columns], ys[r*columns:(r+1)*columns]
		sum := 0.0
		for _, v := range in {
			sum += float64(float64(v) * float64(v))
		}
		s := float32(1 / math.Sqrt(sum/float64(columns)+float64(epsilon)))
		rstd.F32()[r] = s
		for c, v := range in {
			out[c] = v * s * ws[c]
		}
	}
	d.finish(0, y)
}

// RMSNormBackward implements device.Device: with g = dy*weight and xhat = x*rstd, dx = rstd (g - xhat mean(g*xhat))
// [+ plus].
func (d *Device) RMSNormBackward(dx, dy, x, rstd, weight, plus device.Mem, rows, columns int) {
	device.CheckRMSNormBackward(dx, dy, x, rstd, weight, plus, rows, columns)
	dxs, dys, xs, ws := dx.F32(), d.read(0, dy), x.F32(), weight.F32()
	for r := range rows {
		in, dout := xs[r*columns:(r+1)*columns], dys[r*columns:(r+1)*columns]
		s := rstd.F32()[r]
		sum := 0.0
		for c, v := range in {
			sum += float64(float64(dout[c]*ws[c]) * float64(v*s))
		}
		mean := float32(sum / float64(columns))
		for c, v := range in {
			dxs[r*columns+c] = (float32(dout[c]*ws[c]) - float32(v*s*mean)) * s
		}
	}
	addStream(dx, plus)
}

// RMSNormBackwardWeight implements device.Device.
func (d *Device) RMSNormBackwardWeight(dweight, dy, x, rstd device.Mem, rows, columns int) {
	device.CheckRMSNormBackwardWeight(dweight, dy, x, rstd, rows, columns)
	dws, dys, xs := dweight.F32(), d.read(0, dy), x.F32()
	for r := range rows {
		s := rstd.F32()[r]
		for c := range columns {
			dws[c] += float32(dys[r*columns+c] * (xs[r*columns+c] * s))
		}
	}
}

// Rotate implements device.Device.
func (d *Device) Rotate(y, x device.Mem, o device.Rotation) {
	o.Check(y, x)
	table, half := d.rotations.Table(o), o.S/2
	ys, xs := d.result(0, y), d.read(1, x)
	for head := range o.B * o.T * o.Heads {
		t := head / o.Heads % o.T
		angles := table[t*o.S : (t+1)*o.S]
		in, out := xs[head*o.S:(head+1)*o.S], ys[head*o.S:(head+1)*o.S]
		for i := range half {
			cos, sin := angles[i], angles[half+i]
			if o.Inverse {
				sin = -sin
			}
			a, b := in[i], in[half+i]
			out[i] = float32(a*cos) - float32(b*sin)
			out[half+i] = float32(b*cos) + float32(a*sin)
		}
	}
	d.finish(0, y)
}

// SwiGLU implements device.Device.
func (d *Device) SwiGLU(y, gate, up device.Mem) {
	device.CheckSame("SwiGLU", y, gate, up)
	ys, gates, ups := d.result(0, y), d.read(1, gate), d.read(2, up)
	for i, v := range gates {
		x := float64(v)
		ys[i] = float32(x * sigmoid(x) * float64(ups[i]))
	}
	d.finish(0, y)
}

// SwiGLUBackward implements device.Device: silu'(x) = s (1 + x (1 - s)) with s = sigmoid(x).
func (d *Device) SwiGLUBackward(dgate, dup, dy, gate, up device.Mem) {
	device.CheckSame("SwiGLUBackward", dgate, dup, dy, gate, up)
	dgates, dups := d.result(0, dgate), d.result(1, dup)
	dys, gates, ups := d.read(2, dy), d.read(3, gate), d.read(4, up)
	for i, v := range gates {
		x, g := float64(v), float64(dys[i])
		s := sigmoid(x)
		dgates[i] = float32(g * float64(ups[i]) * s * (1 + float64(x*(1-s))))
		dups[i] = float32(g * x * s)
	}
	d.finish(0, dgate)
	d.finish(1, dup)
}

// normal is the standard normal distribution: its cumulative probability at x, and its density. The probability is
// 1/2 + density (x + x^3/3 + x^5/(3 5) + ...) (Marsaglia 2004, section 3).
func normal(x float64) (cumulative, density float64) {
	if x != x {
		return x, x
	}
	density = exp(-0.5*x*x) / math.Sqrt(2*math.Pi)
	switch { // beyond, the tail is below a unit in the last place of a float32 product with x
	case x < -9:
		return 0, density
	case x > 9:
		return 1, density
	}
	sum, term, square := x, x, float64(x*x)
	for i := 3.0; sum != sum+term; i += 2 {
		term *= square / i
		sum += term
	}
	return 0.5 + float64(density*sum), density
}

// GELUErf implements device.Device.
func (d *Device) GELUErf(y, x device.Mem) {
	device.CheckSame("GELUErf", y, x)
	ys, xs := d.result(0, y), d.read(1, x)
	for i, v := range xs {
		p, _ := normal(float64(v))
		ys[i] = float32(float64(v) * p)
	}
	d.finish(0, y)
}

// GELUErfBackward implements device.Device.
func (d *Device) GELUErfBackward(dx, dy, x device.Mem) {
	device.CheckSame("GELUErfBackward", dx, dy, x)
	dxs, dys, xs := d.result(0, dx), d.read(1, dy), d.read(2, x)
	for i, v := range xs {
		p, density := normal(float64(v))
		dxs[i] = float32(float64(dys[i]) * (p + float64(float64(v)*density)))
	}
	d.finish(0, dx)
}

// Tanh implements device.Device.
func (d *Device) Tanh(y, x device.Mem) {
	ys, xs := pair("Tanh", y, x)
	for i, v := range xs {
		ys[i] = float32(tanh(float64(v)))
	}
}

// TanhBackward implements device.Device.
func (d *Device) TanhBackward(dx, dy, y device.Mem) {
	dxs, dys := pair("TanhBackward", dx, dy)
	_, ys := pair("TanhBackward", dx, y)
	for i, v := range ys {
		dxs[i] = dys[i] * (1 - float32(v*v))
	}
}

// AddRows implements device.Device.
func (d *Device) AddRows(y, table, ids device.Mem, rows, width int) {
	device.CheckAddRows(y, table, ids, rows, width)
	ys, values := y.F32(), table.F32()
	for r, id := range ids.I32() {
		to := ys[r*width:][:width]
		for c, v := range values[int(id)*width:][:width] {
			to[c] += v
		}
	}
}
