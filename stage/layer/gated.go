package layer

import "github.com/avgpipe/avgpipe/stage/device"

// GatedMLP is the feed-forward branch of LLaMA's blocks (Shazeer 2020, equation 6):
//
//	g, u (R,F) = x (R,D) Wgate, x Wup
//	h (R,F)    = g / (1 + exp(-g)) * u
//	y (R,D)    = h Wdown
type GatedMLP struct {
	Path           string
	Gate, Up, Down Linear
}

// Describe implements Layer: the parameters are of Gate, Up and Down.
func (l *GatedMLP) Describe(s Size) Description {
	return Description{l.Path, Params(l.Gate, l.Up, l.Down), operand("x", s, l.Gate.In), row("y", s, l.Down.Out)}
}

// Emit implements Layer.
func (l *GatedMLP) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	x := in[0]
	gate, up, down := l.Gate, l.Up, l.Down
	gate.Narrow, up.Narrow, gate.wide, up.wide = true, true, true, true
	g, backGate := gate.emit(b, t.take(gate), x)
	u, backUp := up.emit(b, t.take(up), x)
	h := b.Operand(gate.Out)
	b.Do(&device.SwiGLU{Y: h, Gate: g, Up: u})
	y, backDown := down.emit(b, t, h)
	return single(y, func(dy device.Mem) device.Mem {
		dh, dg, du := backDown(dy), b.Operand(gate.Out), b.Operand(gate.Out)
		b.Do(&device.SwiGLUBackward{DGate: dg, DUp: du, DY: dh, Gate: g, Up: u})
		return b.rounded(b.add(backGate(dg), backUp(du)), x)
	})
}
