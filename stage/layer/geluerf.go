package layer

// GELUErf is the Gaussian error linear unit itself (Hendrycks and Gimpel 2016, section 2), "gelu" in Hugging Face configs, on
// x (R,Width).
type GELUErf struct {
	parameterless
	memoryless
	Path  string
	Width int
}

// Name implements Layer.
func (l GELUErf) Name() string { return l.Path }

// Ports implements Layer. It lies between two products.
func (l GELUErf) Ports(s Size) (in, out []Port) {
	return operand("x", s, l.Width), operand("y", s, l.Width)
}

// Forward implements Layer.
func (l GELUErf) Forward(p Pass) { p.Device.GELUErf(p.Out, p.In) }

// BackwardInput implements Layer. DIn may be DOut.
func (l GELUErf) BackwardInput(p Pass) { p.Device.GELUErfBackward(p.DIn, p.DOut, p.In) }

// backwardInPlace tells Chain that DIn may be DOut.
func (l GELUErf) backwardInPlace() {}
