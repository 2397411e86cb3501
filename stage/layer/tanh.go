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
func (l Tanh) Saved(_ device.Device, s Size) int { return s.Rows() * l.Width }

// Kept implements Layer.
func (l Tanh) Kept(Size) int { return 0 }

// Forward implements Layer.
func (l Tanh) Forward(p Pass) {
	p.Device.Tanh(p.Out, p.In)
	if !p.Evaluating {
		p.Device.Copy(p.Saved, p.Out)
	}
}

// BackwardInput implements Layer. DIn may be DOut.
func (l Tanh) BackwardInput(p Pass) { p.Device.TanhBackward(p.DIn, p.DOut, p.Saved) }

// backwardInPlace tells Chain that DIn may be DOut.
func (l Tanh) backwardInPlace() {}
