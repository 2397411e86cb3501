package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Activation is a function of single elements of x (R,Width): GELU, in its tanh form ("gelu_new" in Hugging Face configs) or itself
// ("gelu"), or ReLU (Nair and Hinton 2010).
type Activation struct {
	parameterless
	memoryless
	device.Function
	Path  string
	Width int
}

// Name implements Layer.
func (l Activation) Name() string { return l.Path }

// Ports implements Layer. A GELU lies between two products.
func (l Activation) Ports(s Size) (in, out []Port) {
	if l.Function == device.ReLU {
		return row("x", s, l.Width), row("y", s, l.Width)
	}
	return operand("x", s, l.Width), operand("y", s, l.Width)
}

// Forward implements Layer.
func (l Activation) Forward(p Pass) {
	p.Device.Do(&device.Unary{Y: p.Out, X: p.In, Function: l.Function})
}

// BackwardInput implements Layer. DIn may be DOut.
func (l Activation) BackwardInput(p Pass) {
	p.Device.Do(&device.UnaryBackward{DX: p.DIn, DY: p.DOut, X: p.In, Function: l.Function})
}

// backwardInPlace tells Chain that DIn may be DOut.
func (l Activation) backwardInPlace() {}
