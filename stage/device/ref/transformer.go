package ref

import "github.com/avgpipe/avgpipe/stage/device"

// rotate runs device.Rotate.
func (d *Device) rotate(o *device.Rotate) {
	table, half := d.rotations.Table(o.Rotation), o.S/2
	ys, xs := d.result(0, o.Y), d.read(1, o.X)
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
	d.finish(0, o.Y)
}

// swiGLU runs device.SwiGLU.
func (d *Device) swiGLU(o *device.SwiGLU) {
	ys, gates, ups := d.result(0, o.Y), d.read(1, o.Gate), d.read(2, o.Up)
	for i, v := range gates {
		x := float64(v)
		ys[i] = float32(x * sigmoid(x) * float64(ups[i]))
	}
	d.finish(0, o.Y)
}

// swiGLUBackward runs device.SwiGLUBackward: silu'(x) = s (1 + x (1 - s)) with s = sigmoid(x).
func (d *Device) swiGLUBackward(o *device.SwiGLUBackward) {
	dgates, dups := d.result(0, o.DGate), d.result(1, o.DUp)
	dys, gates, ups := d.read(2, o.DY), d.read(3, o.Gate), d.read(4, o.Up)
	for i, v := range gates {
		x, g := float64(v), float64(dys[i])
		s := sigmoid(x)
		dgates[i] = float32(g * float64(ups[i]) * s * (1 + float64(x*(1-s))))
		dups[i] = float32(g * x * s)
	}
	d.finish(0, o.DGate)
	d.finish(1, o.DUp)
}
