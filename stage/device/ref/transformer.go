package ref

import (
	"github.com/avgpipe/avgpipe/stage/device"
)

// rotate runs device.Rotate.
func (d *Device) rotate(y, x device.Mem, o device.Rotation) {
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

// swiGLU runs device.SwiGLU.
func (d *Device) swiGLU(y, gate, up device.Mem) {
	ys, gates, ups := d.result(0, y), d.read(1, gate), d.read(2, up)
	for i, v := range gates {
		x := float64(v)
		ys[i] = float32(x * sigmoid(x) * float64(ups[i]))
	}
	d.finish(0, y)
}

// swiGLUBackward runs device.SwiGLUBackward: silu'(x) = s (1 + x (1 - s)) with s = sigmoid(x).
func (d *Device) swiGLUBackward(dgate, dup, dy, gate, up device.Mem) {
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
