package layer

import "github.com/avgpipe/avgpipe/stage/device"

// ImageNorm normalises the channels of x (B,H,W,C), then scales and shifts each: batch norm (Ioffe and Szegedy 2015), or
// group norm (Wu and He 2018) when Groups is not 0. A ReLU may follow at once.
//
// Batch norm takes its statistics from the micro-batch and, when evaluating, from running ones, as PyTorch does: the mean
// and the unbiased variance, of which each step keeps 1 - Momentum. A step counts the mean over its micro-batches, weighted
// by their samples, once; PyTorch, which knows no micro-batches, counts each forward.
type ImageNorm struct {
	Path    string // the parameters are Path.weight, Path.bias and, of batch norm, Path.running_mean and Path.running_var
	Of      Image
	Groups  int // a divisor of the channels; 0: batch norm
	Epsilon float32
	// Momentum is batch norm's: the share of the running statistics that a step replaces.
	Momentum float32
	ReLU     bool
}

// Name implements Layer.
func (l ImageNorm) Name() string { return l.Path }

// Params implements Layer: the weight, the bias and, of batch norm, the running mean and variance.
func (l ImageNorm) Params() []Param {
	shape := []int{l.Of.Channels}
	ps := []Param{{Name: l.Path + ".weight", Shape: shape, Init: Init{Mean: 1}}, {Name: l.Path + ".bias", Shape: shape}}
	if l.Groups > 0 {
		return ps
	}
	return append(ps, Param{Name: l.Path + ".running_mean", Shape: shape, Running: l.Momentum},
		Param{Name: l.Path + ".running_var", Shape: shape, Running: l.Momentum, Init: Init{Mean: 1}})
}

// Ports implements Layer.
func (l ImageNorm) Ports(s Size) (in, out []Port) {
	return row("x", s, l.Of.Elements()), row("y", s, l.Of.Elements())
}

// shape is the device's view of a micro-batch: for batch norm one sample of all positions, a group for each channel.
func (l ImageNorm) shape(s Size) device.GroupShape {
	n := device.GroupShape{
		B: s.Rows(), P: l.Of.Pixels(), C: l.Of.Channels, Groups: l.Groups, Epsilon: l.Epsilon, ReLU: l.ReLU,
	}
	if l.Groups == 0 {
		n.B, n.P, n.Groups = 1, n.B*n.P, n.C
	}
	return n
}

// Saved implements Layer: the mean and the variance of each group.
func (l ImageNorm) Saved(s Size) int {
	n := l.shape(s)
	return 2 * Padded(n.B*n.Groups)
}

// Kept implements Layer: the sums (2,B,C) of the gradient over positions.
func (l ImageNorm) Kept(s Size) int {
	n := l.shape(s)
	return 2 * n.B * n.C
}

// FLOPs implements Layer: no matrix product.
func (l ImageNorm) FLOPs(Size) (forward, backward float64) { return 0, 0 }

func (l ImageNorm) saved(p Pass) (mean, variance device.Mem) {
	n, c := l.shape(p.Size), cutter{mem: p.Saved}
	return c.take(n.B * n.Groups), c.take(n.B * n.Groups)
}

// Forward implements Layer.
func (l ImageNorm) Forward(p Pass) { l.forward(p, device.Mem{}) }

// forward adds skip (B,H,W,C), which may be absent, before the ReLU.
func (l ImageNorm) forward(p Pass, skip device.Mem) {
	n := l.shape(p.Size)
	mean, variance := l.saved(p)
	if p.Evaluating && l.Groups == 0 {
		mean, variance = p.Params[2], p.Params[3]
	} else {
		p.Device.Do(&device.GroupMoments{Mean: mean, Variance: variance, X: p.In, GroupShape: n})
	}
	if !p.Evaluating && !p.Recomputing && l.Groups == 0 {
		unbiased := float32(float64(n.P) / float64(max(n.P-1, 1)))
		p.Device.Do(&device.Axpy{Y: p.Grads[2], A: p.Weight, X: mean})
		p.Device.Do(&device.Axpy{Y: p.Grads[3], A: p.Weight * unbiased, X: variance})
	}
	p.Device.Do(&device.GroupNorm{
		Y: p.Out, X: p.In, Skip: skip, Mean: mean, Variance: variance, Weight: p.Params[0], Bias: p.Params[1], GroupShape: n,
	})
}

// BackwardInput implements Layer.
func (l ImageNorm) BackwardInput(p Pass) { l.backward(p, device.Mem{}, device.Mem{}) }

// backward takes the skip of forward; dskip, unless absent, receives its gradient.
func (l ImageNorm) backward(p Pass, skip, dskip device.Mem) {
	mean, variance := l.saved(p)
	p.Device.Do(&device.GroupNormBackward{
		DX: p.DIn, DZ: dskip, Sums: p.Kept, DY: p.DOut, X: p.In, Skip: skip, Mean: mean, Variance: variance, Weight: p.Params[0],
		Bias: p.Params[1], GroupShape: l.shape(p.Size),
	})
}

// BackwardWeight implements Layer.
func (l ImageNorm) BackwardWeight(p Pass) {
	n := l.shape(p.Size)
	p.Device.Do(&device.SumRows{Sum: p.Grads[1], X: p.Kept.Slice(0, n.B*n.C)})
	p.Device.Do(&device.SumRows{Sum: p.Grads[0], X: p.Kept.Slice(n.B*n.C, n.B*n.C)})
}
