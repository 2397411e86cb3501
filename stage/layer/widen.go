package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Widen gives a norm in F32 what a layer between products leaves in the type in which they compute: y = x (R,Width).
type Widen struct {
	Path  string
	Width int
}

// Name implements Layer.
func (l Widen) Name() string { return l.Path }

// Params implements Layer: none.
func (l Widen) Params() []Param { return nil }

// Ports implements Layer.
func (l Widen) Ports(s Size) (in, out []Port) { return operand("x", s, l.Width), row("y", s, l.Width) }

// Saved implements Layer.
func (l Widen) Saved(device.Device, Size) int { return 0 }

// Kept implements Layer.
func (l Widen) Kept(Size) int { return 0 }

// FLOPs implements Layer: no matrix product.
func (l Widen) FLOPs(Size) (forward, backward float64) { return 0, 0 }

// Forward implements Layer.
func (l Widen) Forward(p Pass) { convert(p.Device, p.Out, p.In) }

// BackwardInput implements Layer.
func (l Widen) BackwardInput(p Pass) { convert(p.Device, p.DIn, p.DOut) }

// BackwardWeight implements Layer: no parameters.
func (l Widen) BackwardWeight(Pass) {}

// convert copies x to y, whatever their types are.
func convert(d device.Device, y, x device.Mem) {
	if y.Type() == x.Type() {
		d.Copy(y, x)
		return
	}
	d.Convert(y, x)
}
