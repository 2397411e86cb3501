package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Tanh is y = tanh(x) on x (R,Width). It saves y.
type Tanh struct {
	parameterless
	Path  string
	Width int
}

// Name implements Layer.
func (l Tanh) Name() string { return l.Path }

// Ports implements Layer.
func (l Tanh) Ports(s Size) (in, out []Port) { return row("x", s, l.Width), row("y", s, l.Width) }

// Saved implements Layer.
func (l Tanh) Saved(s Size) int { return s.Rows() * l.Width }

// Kept implements Layer.
func (l Tanh) Kept(Size) int { return 0 }

// Forward implements Layer.
func (l Tanh) Forward(p Pass) {
	p.Device.Do(&device.Unary{Y: p.Out, X: p.In, Function: device.Tanh})
	if !p.Evaluating {
		p.Device.Do(&device.Copy{Y: p.Saved, X: p.Out})
	}
}

// BackwardInput implements Layer. DIn may be DOut.
func (l Tanh) BackwardInput(p Pass) {
	p.Device.Do(&device.UnaryBackward{DX: p.DIn, DY: p.DOut, X: p.Saved, Function: device.Tanh})
}

// backwardInPlace tells Chain that DIn may be DOut.
func (l Tanh) backwardInPlace() {}
