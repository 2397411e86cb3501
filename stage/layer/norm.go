package layer

import "github.com/avgpipe/avgpipe/stage/device"

// LayerNorm normalises each row of x (R,D) to mean 0 and variance 1, then scales and shifts it (Ba et al. 2016).
// It saves mean (R) and rstd (R).
type LayerNorm struct {
	Path    string
	Width   int
	Epsilon float32
}

// Name implements Layer.
func (l LayerNorm) Name() string { return l.Path }

// Params implements Layer: the weight, then the bias.
func (l LayerNorm) Params() []Param {
	return []Param{
		{Name: l.Path + ".weight", Shape: []int{l.Width}, Init: Init{Mean: 1}},
		{Name: l.Path + ".bias", Shape: []int{l.Width}},
	}
}

// Ports implements Layer. In a Chain, before a product, y may be BF16; see adaptive.
func (l LayerNorm) Ports(s Size) (in, out []Port) { return row("x", s, l.Width), row("y", s, l.Width) }

func (l LayerNorm) adapts() (in, out bool) { return false, true }

func (l LayerNorm) sums() bool { return true }

// Saved implements Layer.
func (l LayerNorm) Saved(s Size) int { return 2 * Padded(s.Rows()) }

// Kept implements Layer.
func (l LayerNorm) Kept(Size) int { return 0 }

// FLOPs implements Layer: no matrix product.
func (l LayerNorm) FLOPs(Size) (forward, backward float64) { return 0, 0 }

func (l LayerNorm) saved(p Pass) (mean, rstd device.Mem) {
	c := cutter{mem: p.Saved}
	return c.take(p.Size.Rows()), c.take(p.Size.Rows())
}

// Forward implements Layer.
func (l LayerNorm) Forward(p Pass) {
	mean, rstd := l.saved(p)
	p.Device.Do(&device.Norm{Y: p.Out, Mean: mean, Rstd: rstd, X: p.In, Weight: p.Params[0], Bias: p.Params[1], Epsilon: l.Epsilon})
}

// BackwardInput implements Layer.
func (l LayerNorm) BackwardInput(p Pass) {
	mean, rstd := l.saved(p)
	p.Device.Do(&device.NormBackward{DX: p.DIn, DY: p.DOut, X: p.In, Mean: mean, Rstd: rstd, Weight: p.Params[0], Plus: p.Plus})
}

// BackwardWeight implements Layer.
func (l LayerNorm) BackwardWeight(p Pass) {
	mean, rstd := l.saved(p)
	p.Device.Do(&device.NormBackwardWeight{DWeight: p.Grads[0], DBias: p.Grads[1], DY: p.DOut, X: p.In, Mean: mean, Rstd: rstd})
}
