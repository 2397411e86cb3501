package layer

// ReLU is max(x, 0) (Nair and Hinton 2010), on x (R,Width).
type ReLU struct {
	parameterless
	memoryless
	Path  string
	Width int
}

// Name implements Layer.
func (l ReLU) Name() string { return l.Path }

// Ports implements Layer.
func (l ReLU) Ports(s Size) (in, out []Port) { return row("x", s, l.Width), row("y", s, l.Width) }

// Forward implements Layer.
func (l ReLU) Forward(p Pass) { p.Device.ReLU(p.Out, p.In) }

// BackwardInput implements Layer. DIn may be DOut.
func (l ReLU) BackwardInput(p Pass) { p.Device.ReLUBackward(p.DIn, p.DOut, p.In) }

// backwardInPlace tells Chain that DIn may be DOut.
func (l ReLU) backwardInPlace() {}
