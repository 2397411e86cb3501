package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// maxPool runs device.MaxPool.
func (d *Device) maxPool(o *device.MaxPool) {
	ys, xs := o.Y.F32(), o.X.F32()
	eachWinner(o.Pool, xs, func(y, x int) { ys[y] = xs[x] })
}

// maxPoolBackward runs device.MaxPoolBackward.
func (d *Device) maxPoolBackward(o *device.MaxPoolBackward) {
	dxs, dys := o.DX.F32(), o.DY.F32()
	clear(dxs)
	eachWinner(o.Pool, o.X.F32(), func(y, x int) { dxs[x] += dys[y] })
}

// eachWinner calls visit with each element of a pool's output and the element of xs that is the largest of its window.
func eachWinner(p device.Pool, xs []float32, visit func(y, x int)) {
	oh, ow := p.Output()
	for i := range p.B * oh * ow {
		w := windowAt(p, oh, ow, i)
		for c := range p.Channels {
			visit(i*p.Channels+c, w.winner(xs, c))
		}
	}
}

// window is what one pixel of a pool's output sees of x: elements (top..bottom, left..right) of the sample at `sample`.
type window struct {
	device.Pool
	sample, top, bottom, left, right int
}

// windowAt is window i of the B*oh*ow of p.
func windowAt(p device.Pool, oh, ow, i int) window {
	row, column := i/ow%oh*p.Stride-p.Padding, i%ow*p.Stride-p.Padding
	return window{
		p, i / (oh * ow) * p.Height * p.Width * p.Channels,
		max(row, 0), min(row+p.Kernel, p.Height), max(column, 0), min(column+p.Kernel, p.Width),
	}
}

// winner is where the largest element of channel c lies: the first of equals, and the first NaN before all.
func (w window) winner(xs []float32, c int) int {
	at := -1
	for row := w.top; row < w.bottom; row++ {
		for column := w.left; column < w.right; column++ {
			i := w.sample + (row*w.Width+column)*w.Channels + c
			if at < 0 || xs[i] > xs[at] || xs[i] != xs[i] && xs[at] == xs[at] {
				at = i
			}
		}
	}
	return at
}

// averagePool runs device.AveragePool.
func (d *Device) averagePool(o *device.AveragePool) {
	ys, xs := o.Y.F32(), o.X.F32()
	for i := range ys {
		sum := 0.0
		for at := range o.P {
			sum += float64(xs[(i/o.C*o.P+at)*o.C+i%o.C])
		}
		ys[i] = float32(sum / float64(o.P))
	}
}

// averagePoolBackward runs device.AveragePoolBackward.
func (d *Device) averagePoolBackward(o *device.AveragePoolBackward) {
	dxs, dys, share := o.DX.F32(), o.DY.F32(), 1/float32(o.P)
	for i := range dxs {
		dxs[i] = dys[i/(o.P*o.C)*o.C+i%o.C] * share
	}
}

// groupMoments runs device.GroupMoments. The mean comes first and the variance about it second, both in float64.
func (d *Device) groupMoments(n *device.GroupMoments) {
	width := n.C / n.Groups
	count := float64(n.P * width)
	for i := range n.B * n.Groups {
		sample, first := n.X.F32()[i/n.Groups*n.P*n.C:][:n.P*n.C], i%n.Groups*width
		sum, squares := 0.0, 0.0
		for at := first; at < len(sample); at += n.C {
			for _, v := range sample[at : at+width] {
				sum += float64(v)
			}
		}
		m := sum / count
		for at := first; at < len(sample); at += n.C {
			for _, v := range sample[at : at+width] {
				squares += float64((float64(v) - m) * (float64(v) - m))
			}
		}
		n.Mean.F32()[i], n.Variance.F32()[i] = float32(m), float32(squares/count)
	}
}

// normalised is one call of GroupNorm or its backward.
type normalised struct {
	device.GroupShape
	x, skip, mean, rstd, weight, bias []float32
}

func (d *Device) newNormalised(n *device.GroupNorm) normalised {
	d.rstd = grow(d.rstd, n.B*n.Groups)
	for i, v := range n.Variance.F32() {
		d.rstd[i] = float32(1 / math.Sqrt(float64(v)+float64(n.Epsilon)))
	}
	return normalised{n.GroupShape, n.X.F32(), optional(n.Skip), n.Mean.F32(), d.rstd, n.Weight.F32(), n.Bias.F32()}
}

// statistics is where the mean and the reciprocal deviation of channel c of a sample lie.
func (n normalised) statistics(sample, c int) int { return sample*n.Groups + c/(n.C/n.Groups) }

// at is element i, of channel c of a sample: normalised, and as the output has it before the ReLU.
func (n normalised) at(i, sample, c int) (xhat, z float32) {
	s := n.statistics(sample, c)
	xhat = (n.x[i] - n.mean[s]) * n.rstd[s]
	z = float32(xhat*n.weight[c]) + n.bias[c]
	if n.skip != nil {
		z += n.skip[i]
	}
	return xhat, z
}

// groupNorm runs device.GroupNorm.
func (d *Device) groupNorm(n *device.GroupNorm) {
	at, ys := d.newNormalised(n), n.Y.F32()
	for row := range n.B * n.P {
		for c := range n.C {
			_, z := at.at(row*n.C+c, row/n.P, c)
			if n.ReLU {
				z = relu(z)
			}
			ys[row*n.C+c] = z
		}
	}
}

// groupNormBackward runs device.GroupNormBackward: with g = dz * weight, dx = rstd (g - mean(g) - xhat mean(g*xhat)), the
// means over each group.
func (d *Device) groupNormBackward(n *device.GroupNormBackward) {
	at := d.newNormalised(&device.GroupNorm{
		X: n.X, Skip: n.Skip, Mean: n.Mean, Variance: n.Variance, Weight: n.Weight, Bias: n.Bias, GroupShape: n.GroupShape,
	})
	dxs, dys := n.DX.F32(), n.DY.F32()
	channels := d.clearSums(2 * n.B * n.C)
	for row := range n.B * n.P {
		first, second := channels[row/n.P*n.C:], channels[(n.B+row/n.P)*n.C:]
		for c := range n.C {
			i := row*n.C + c
			xhat, z := at.at(i, row/n.P, c)
			dxs[i] = dys[i]
			if n.ReLU && !(z > 0) {
				dxs[i] = 0
			}
			first[c] += float64(dxs[i])
			second[c] += float64(dxs[i]) * float64(xhat)
		}
	}
	if !n.DZ.Absent() {
		copy(n.DZ.F32(), dxs)
	}
	for i, v := range channels {
		n.Sums.F32()[i] = float32(v)
	}
	at.spread(dxs, channels)
}

// spread turns dz into dx, given the sums of dz and of dz * xhat over each sample's positions (2,B,C).
func (n normalised) spread(dxs []float32, channels []float64) {
	width := n.C / n.Groups
	count := float64(n.P * width)
	for s := range n.B * n.Groups {
		sample, from := s/n.Groups, s%n.Groups*width
		var g, gx float64
		for c := from; c < from+width; c++ {
			g += float64(n.weight[c]) * channels[sample*n.C+c]
			gx += float64(n.weight[c]) * channels[(n.B+sample)*n.C+c]
		}
		g, gx = g/count, gx/count
		for row := sample * n.P; row < (sample+1)*n.P; row++ {
			for c := from; c < from+width; c++ {
				i := row*n.C + c
				xhat := float64((n.x[i] - n.mean[s]) * n.rstd[s])
				dxs[i] = float32(float64(n.rstd[s]) * (float64(dxs[i]*n.weight[c]) - g - float64(xhat*gx)))
			}
		}
	}
}

// clearSums returns n zeros of scratch.
func (d *Device) clearSums(n int) []float64 {
	d.sums = grow(d.sums, n)
	clear(d.sums)
	return d.sums
}

// transpose runs device.Transpose.
func (d *Device) transpose(o *device.Transpose) {
	size := o.Rows * o.Columns
	for i := range o.N {
		transpose(o.Y.F32()[i*size:], o.X.F32()[i*size:][:size], o.Rows, o.Columns)
	}
}
