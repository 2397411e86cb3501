package layer

import "github.com/avgpipe/avgpipe/stage/device"

// VariationalDropout drops elements of x (R,Width), each at all positions of a sample or at none (Gal and Ghahramani 2016,
// section 4), and regularises activations (Merity et al. 2017, section 3): to the loss belong, though they are not counted in
// what is reported,
//
//	Activation * mean over all elements of y^2 + Temporal * mean over all elements but the last position's of (x_(t+1) - x_t)^2
//
// with the means over the batch. Evaluating, y = x.
type VariationalDropout struct {
	Path  string
	Width int
	Rate  float64 // in [0,1)
	// Activation and Temporal are the paper's alpha and beta.
	Activation, Temporal float64
}

// Describe implements Layer.
func (l VariationalDropout) Describe(s Size) Description {
	return Description{Name: l.Path, In: row("x", s, l.Width), Out: row("y", s, l.Width)}
}

// drop is x with elements dropped.
func (l VariationalDropout) drop(b *Builder, x device.Mem) device.Mem {
	return b.dropped(x, device.Mem{}, l.Rate, device.DropoutMask{
		Stream: device.StreamOf(l.Path), PerSample: l.Width, Rows: b.Rows(), Columns: l.Width, Share: b.T,
	})
}

// Emit implements Layer: dx = drop(dy + 2 Activation / n drop(x)), and the temporal part.
func (l VariationalDropout) Emit(b *Builder, _ Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	x := in[0]
	if b.Evaluating {
		return in, nil
	}
	return single(l.drop(b, x), func(dy device.Mem) device.Mem {
		if l.Activation > 0 {
			n := float64(b.Rows() * l.Width)
			y := b.Like(x)
			b.Do(&device.Copy{Y: y, X: l.drop(b, x)})
			b.Do(&device.Scale{X: y, A: float32(2 * l.Activation / n), By: device.Weight})
			dy = b.add(y, dy)
		}
		dx := l.drop(b, dy)
		if l.Temporal > 0 && b.T > 1 {
			own := b.Like(x)
			b.Do(&device.Copy{Y: own, X: dx})
			l.temporal(b, x, own)
			return own
		}
		return dx
	})
}

// temporal adds the gradient of the mean of (x_(t+1) - x_t)^2 to dx: at one end of each difference its double, at the other the negative.
func (l VariationalDropout) temporal(b *Builder, x, dx device.Mem) {
	n := (b.T - 1) * l.Width
	scale := float32(2 * l.Temporal / float64(b.B*n))
	for sample := range b.B {
		at := sample * b.T * l.Width
		before, after := x.Slice(at, n), x.Slice(at+l.Width, n)
		dbefore, dafter := dx.Slice(at, n), dx.Slice(at+l.Width, n)
		b.Do(&device.Axpy{Y: dbefore, A: scale, X: before, By: device.Weight})
		b.Do(&device.Axpy{Y: dbefore, A: -scale, X: after, By: device.Weight})
		b.Do(&device.Axpy{Y: dafter, A: scale, X: after, By: device.Weight})
		b.Do(&device.Axpy{Y: dafter, A: -scale, X: before, By: device.Weight})
	}
}
