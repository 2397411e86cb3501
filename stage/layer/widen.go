package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Widen gives a norm in F32 what a layer between products leaves in the type in which they compute: y = x (R,Width).
type Widen struct {
	parameterless
	memoryless
	Path  string
	Width int
}

// Name implements Layer.
func (l Widen) Name() string { return l.Path }

// Ports implements Layer.
func (l Widen) Ports(s Size) (in, out []Port) { return operand("x", s, l.Width), row("y", s, l.Width) }

// Forward implements Layer.
func (l Widen) Forward(p Pass) { p.Device.Do(&device.Copy{Y: p.Out, X: p.In}) }

// BackwardInput implements Layer.
func (l Widen) BackwardInput(p Pass) { p.Device.Do(&device.Copy{Y: p.DIn, X: p.DOut}) }
