package layer

import "github.com/avgpipe/avgpipe/stage/device"

// maskPort is the mask (B,T) that travels behind x through a bidirectional model: 1 at a token, 0 at padding.
func maskPort(s Size) Port { return Port{Name: "mask", Type: device.I32, Elements: s.Rows(), Limit: 2} }

// PassMask passes the mask on to later layers: it adds the last input port of a layer f as a second output port, behind f's output y.
type PassMask struct{ Layer }

// Describe implements Layer.
func (l PassMask) Describe(s Size) Description {
	d := l.Layer.Describe(s)
	d.Out = append(d.Out, maskPort(s))
	return d
}

// Emit implements Layer.
func (l PassMask) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	out, back := l.Layer.Emit(b, t, in)
	return append(out, in[len(in)-1]), func(dout []device.Mem) []device.Mem { return back(dout[:1]) }
}
