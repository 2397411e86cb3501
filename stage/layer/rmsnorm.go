package layer

import "github.com/avgpipe/avgpipe/stage/device"

// RMSNorm divides each row of x (R,D) by the root of its mean square and scales it (Zhang and Sennrich 2019). It saves the
// reciprocal of the root, rstd (R).
type RMSNorm struct {
	Path    string
	Width   int
	Epsilon float32
}

// Name implements Layer.
func (l RMSNorm) Name() string { return l.Path }

// Params implements Layer: the weight.
func (l RMSNorm) Params() []Param {
	return []Param{{Name: l.Path + ".weight", Shape: []int{l.Width}, Init: Init{Mean: 1}}}
}

// Ports implements Layer. What is normalised goes to products.
func (l RMSNorm) Ports(s Size) (in, out []Port) {
	return row("x", s, l.Width), operand("y", s, l.Width)
}

func (l RMSNorm) sums() bool { return true }

// Saved implements Layer.
func (l RMSNorm) Saved(s Size) int { return s.Rows() }

// Kept implements Layer.
func (l RMSNorm) Kept(Size) int { return 0 }

// FLOPs implements Layer: no matrix product.
func (l RMSNorm) FLOPs(Size) (forward, backward float64) { return 0, 0 }

// Forward implements Layer.
func (l RMSNorm) Forward(p Pass) {
	p.Device.Do(&device.Norm{Y: p.Out, Rstd: p.Saved.Slice(0, p.Size.Rows()), X: p.In, Weight: p.Params[0], Epsilon: l.Epsilon})
}

// BackwardInput implements Layer.
func (l RMSNorm) BackwardInput(p Pass) {
	rows := p.Size.Rows()
	p.Device.Do(&device.NormBackward{DX: p.DIn, DY: p.DOut, X: p.In, Rstd: p.Saved.Slice(0, rows), Weight: p.Params[0], Plus: p.Plus})
}

// BackwardWeight implements Layer.
func (l RMSNorm) BackwardWeight(p Pass) {
	p.Device.Do(&device.NormBackwardWeight{DWeight: p.Grads[0], DY: p.DOut, X: p.In, Rstd: p.Saved.Slice(0, p.Size.Rows())})
}
