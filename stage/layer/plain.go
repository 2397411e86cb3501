package layer

import "github.com/avgpipe/avgpipe/stage/device"

// plain is a layer from x to y without parameters.
type plain struct {
	path string
	x, y Stream
	emit func(b *Builder, x device.Mem) (y device.Mem, back func(dy device.Mem) (dx device.Mem))
}

// newPlain is a plain layer between widths, of F32.
func newPlain(path string, in, out int, emit func(b *Builder, x device.Mem) (y device.Mem, back func(dy device.Mem) (dx device.Mem))) plain {
	return plain{path, Stream{Name: "x", Width: in}, Stream{Name: "y", Width: out}, emit}
}

func (l plain) Describe(s Size) Description {
	return Description{Name: l.path, In: []Port{l.x.port(s)}, Out: []Port{l.y.port(s)}}
}

func (l plain) Emit(b *Builder, _ Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	return single(l.emit(b, in[0]))
}
