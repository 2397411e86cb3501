package layer

import "github.com/avgpipe/avgpipe/stage/device"

// GELUErf is the Gaussian error linear unit itself (Hendrycks and Gimpel 2016, section 2), "gelu" in Hugging Face configs, on
// x (R,Width).
type GELUErf struct {
	Path  string
	Width int
}

// Name implements Layer.
func (l GELUErf) Name() string { return l.Path }

// Params implements Layer: none.
func (l GELUErf) Params() []Param { return nil }

// Ports implements Layer. It lies between two products.
func (l GELUErf) Ports(s Size) (in, out []Port) {
	return operand("x", s, l.Width), operand("y", s, l.Width)
}

// Saved implements Layer.
func (l GELUErf) Saved(device.Device, Size) int { return 0 }

// Kept implements Layer.
func (l GELUErf) Kept(Size) int { return 0 }

// FLOPs implements Layer: no matrix product.
func (l GELUErf) FLOPs(Size) (forward, backward float64) { return 0, 0 }

// Forward implements Layer.
func (l GELUErf) Forward(p Pass) { p.Device.GELUErf(p.Out, p.In) }

// BackwardInput implements Layer. DIn may be DOut.
func (l GELUErf) BackwardInput(p Pass) { p.Device.GELUErfBackward(p.DIn, p.DOut, p.In) }

// BackwardWeight implements Layer: no parameters.
func (l GELUErf) BackwardWeight(Pass) {}

// backwardInPlace tells Chain that DIn may be DOut.
func (l GELUErf) backwardInPlace() {}
