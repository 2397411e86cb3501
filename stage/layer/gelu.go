package layer

import "github.com/avgpipe/avgpipe/stage/device"

// GELU is the tanh form of the Gaussian error linear unit (Hendrycks and Gimpel 2016, section 2), "gelu_new" in Hugging
// Face configs, on x (R,Width).
type GELU struct {
	Path  string
	Width int
}

// Name implements Layer.
func (l GELU) Name() string { return l.Path }

// Params implements Layer: none.
func (l GELU) Params() []Param { return nil }

// Ports implements Layer. It lies between two products.
func (l GELU) Ports(s Size) (in, out []Port) {
	return operand("x", s, l.Width), operand("y", s, l.Width)
}

// Saved implements Layer.
func (l GELU) Saved(device.Device, Size) int { return 0 }

// Kept implements Layer.
func (l GELU) Kept(Size) int { return 0 }

// FLOPs implements Layer: no matrix product.
func (l GELU) FLOPs(Size) (forward, backward float64) { return 0, 0 }

// Forward implements Layer.
func (l GELU) Forward(p Pass) { p.Device.GELU(p.Out, p.In) }

// BackwardInput implements Layer. DIn may be DOut.
func (l GELU) BackwardInput(p Pass) { p.Device.GELUBackward(p.DIn, p.DOut, p.In) }

// BackwardWeight implements Layer: no parameters.
func (l GELU) BackwardWeight(Pass) {}

// backwardInPlace tells Chain that DIn may be DOut.
func (l GELU) backwardInPlace() {}
