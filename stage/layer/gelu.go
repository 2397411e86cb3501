package layer

// GELU is the tanh form of the Gaussian error linear unit (Hendrycks and Gimpel 2016, section 2), "gelu_new" in Hugging
// Face configs, on x (R,Width).
type GELU struct {
	parameterless
	memoryless
	Path  string
	Width int
}

// Name implements Layer.
func (l GELU) Name() string { return l.Path }

// Ports implements Layer. It lies between two products.
func (l GELU) Ports(s Size) (in, out []Port) {
	return operand("x", s, l.Width), operand("y", s, l.Width)
}

// Forward implements Layer.
func (l GELU) Forward(p Pass) { p.Device.GELU(p.Out, p.In) }

// BackwardInput implements Layer. DIn may be DOut.
func (l GELU) BackwardInput(p Pass) { p.Device.GELUBackward(p.DIn, p.DOut, p.In) }

// backwardInPlace tells Chain that DIn may be DOut.
func (l GELU) backwardInPlace() {}
