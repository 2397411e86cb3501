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

// Describe implements Layer: the parameters are the weight, the bias and, of batch norm, the running mean and variance.
func (l ImageNorm) Describe(s Size) Description {
	shape := []int{l.Of.Channels}
	ps := []Param{{Name: l.Path + ".weight", Shape: shape, Init: Init{Mean: 1}}, {Name: l.Path + ".bias", Shape: shape}}
	if l.Groups == 0 {
		ps = append(ps, Param{Name: l.Path + ".running_mean", Shape: shape, Running: l.Momentum},
			Param{Name: l.Path + ".running_var", Shape: shape, Running: l.Momentum, Init: Init{Mean: 1}})
	}
	return Description{l.Path, ps, row("x", s, l.Of.Elements()), row("y", s, l.Of.Elements())}
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

// Emit implements Layer.
func (l ImageNorm) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	y, back := l.emit(b, t, in[0], device.Mem{})
	return single(y, func(dy device.Mem) device.Mem {
		dx, _ := back(dy)
		return dx
	})
}

// emit adds skip (B,H,W,C), which may be absent, before the ReLU; dskip is its gradient.
func (l ImageNorm) emit(b *Builder, t Tensors, x, skip device.Mem) (y device.Mem, back func(dy device.Mem) (dx, dskip device.Mem)) {
	shape := l.shape(b.Size)
	mean, variance := l.statistics(b, t, x, shape)
	y = b.Like(x)
	b.Do(&device.GroupNorm{Y: y, X: x, Skip: skip, Mean: mean, Variance: variance, Weight: t.Params[0], Bias: t.Params[1], GroupShape: shape})
	return y, func(dy device.Mem) (dx, dskip device.Mem) {
		n := shape.B * shape.C
		sums := b.New(device.F32, 2*n)
		dx = b.Like(x)
		if !skip.Absent() {
			dskip = b.Like(x)
		}
		b.Do(&device.GroupNormBackward{
			DX: dx, DZ: dskip, Sums: sums, DY: dy, X: x, Skip: skip, Mean: mean, Variance: variance, Weight: t.Params[0], Bias: t.Params[1],
			GroupShape: shape,
		})
		b.Do(&device.SumRows{Sum: t.Grads[1], X: sums.Slice(0, n)})
		b.Do(&device.SumRows{Sum: t.Grads[0], X: sums.Slice(n, n)})
		return dx, dskip
	}
}

// statistics are the mean and the variance of each group.
func (l ImageNorm) statistics(b *Builder, t Tensors, x device.Mem, n device.GroupShape) (mean, variance device.Mem) {
	if b.Evaluating && l.Groups == 0 {
		return t.Params[2], t.Params[3]
	}
	mean, variance = b.New(device.F32, n.B*n.Groups), b.New(device.F32, n.B*n.Groups)
	b.Do(&device.GroupMoments{Mean: mean, Variance: variance, X: x, GroupShape: n})
	if l.Groups == 0 && !b.Evaluating && !b.Recomputing {
		unbiased := float32(float64(n.P) / float64(max(n.P-1, 1)))
		b.Do(&device.Axpy{Y: t.Grads[2], A: 1, X: mean, By: device.Weight})
		b.Do(&device.Axpy{Y: t.Grads[3], A: unbiased, X: variance, By: device.Weight})
	}
	return mean, variance
}
