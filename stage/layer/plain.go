package layer

import "github.com/avgpipe/avgpipe/stage/device"

// plain is a layer from x to y without parameters, of one operation forward and one backward.
type plain struct {
	path     string
	x, y     Stream
	forward  func(b *Builder, y, x device.Mem) device.Op
	backward func(b *Builder, dx, dy, y, x device.Mem) device.Op
}

// newPlain is a plain layer between widths, of F32.
func newPlain(
	path string, in, out int, forward func(b *Builder, y, x device.Mem) device.Op, backward func(b *Builder, dx, dy, y, x device.Mem) device.Op,
) plain {
	return plain{path, Stream{Name: "x", Width: in}, Stream{Name: "y", Width: out}, forward, backward}
}

func (l plain) Describe(s Size) Description {
	return Description{Name: l.path, In: []Port{l.x.port(s)}, Out: []Port{l.y.port(s)}}
}

func (l plain) Emit(b *Builder, _ Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	x, y := in[0], b.Floats(l.y.Width)
	if l.y.operand {
		y = b.Like(x)
	}
	b.Do(l.forward(b, y, x))
	return single(y, func(dy device.Mem) device.Mem {
		dx := b.Like(x)
		b.Do(l.backward(b, dx, dy, y, x))
		return dx
	})
}
