package layer

import "github.com/avgpipe/avgpipe/stage/device"

// ReLU is max(x, 0) (Nair and Hinton 2010), on x (R,Width).
type ReLU struct {
	Path  string
	Width int
}

// Name implements Layer.
func (l ReLU) Name() string { return l.Path }

// Params implements Layer: none.
func (l ReLU) Params() []Param { return nil }

// Ports implements Layer.
func (l ReLU) Ports(s Size) (in, out []Port) { return row("x", s, l.Width), row("y", s, l.Width) }

// Saved implements Layer.
func (l ReLU) Saved(device.Device, Size) int { return 0 }

// Kept implements Layer.
func (l ReLU) Kept(Size) int { return 0 }

// FLOPs implements Layer: no matrix product.
func (l ReLU) FLOPs(Size) (forward, backward float64) { return 0, 0 }

// Forward implements Layer.
func (l ReLU) Forward(p Pass) { p.Device.ReLU(p.Out, p.In) }

// BackwardInput implements Layer. DIn may be DOut.
func (l ReLU) BackwardInput(p Pass) { p.Device.ReLUBackward(p.DIn, p.DOut, p.In) }

// BackwardWeight implements Layer: no parameters.
func (l ReLU) BackwardWeight(Pass) {}

// backwardInPlace tells Chain that DIn may be DOut.
func (l ReLU) backwardInPlace() {}
