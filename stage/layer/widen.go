package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Widen gives a norm in F32 what a layer between products leaves in the type in which they compute: y = x (R,Width).
type Widen struct {
	Path  string
	Width int
}

// Name implements Layer.
func (l Widen) Name() string { return l.Path }

// Ports implements Layer.
func (l Widen) Ports(s Size) (in, out []Port) { return operand("x", s, l.Width), row("y", s, l.Width) }

// Params implements Layer.
func (l Widen) Params() []Param { return nil }

// Emit implements Layer.
func (l Widen) Emit(b *Builder, _ Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	y := b.Floats(l.Width)
	b.Do(&device.Copy{Y: y, X: in[0]})
	return single(y, func(dy device.Mem) device.Mem {
		dx := b.Like(in[0])
		b.Do(&device.Copy{Y: dx, X: dy})
		return dx
	})
}
