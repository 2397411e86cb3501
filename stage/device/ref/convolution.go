package ref

import "github.com/avgpipe/avgpipe/stage/device"

// convolution is one call: what its three forms share. Element (oh,ow) of y sees, through element (kh,kw) of the window,
// element (oh*Stride - Padding + kh, ow*Stride - Padding + kw) of x, where there is one.
type convolution struct {
	device.ConvolutionShape
	oh, ow int
}

func newConvolution(c device.ConvolutionShape) convolution {
	oh, ow := c.Output()
	return convolution{c, oh, ow}
}

// visible are the windows, of `count`, whose element at offset lies on a line of n pixels: [from, to), the first on pixel `first`.
func visible(n, count, stride, offset int) (from, to, first int) {
	if offset < 0 {
		from = (-offset + stride - 1) / stride
	}
	if last := n - 1 - offset; last >= 0 {
		to = min(count, last/stride+1)
	}
	return from, max(from, to), from*stride + offset
}

// each calls visit for each row of y, element of the window and row of x that meet: k is the element, y and x are where
// the first pixels that meet begin, n how many do.
func (c convolution) each(visit func(k, y, x, n int)) {
	for b := range c.B {
		for kh := range c.Kernel {
			top, bottom, ih := visible(c.Height, c.oh, c.Stride, kh-c.Padding)
			for oh := top; oh < bottom; oh, ih = oh+1, ih+c.Stride {
				for kw := range c.Kernel {
					from, to, iw := visible(c.Width, c.ow, c.Stride, kw-c.Padding)
					if from < to {
						visit(kh*c.Kernel+kw, ((b*c.oh+oh)*c.ow+from)*c.Out, ((b*c.Height+ih)*c.Width+iw)*c.In, to-from)
					}
				}
			}
		}
	}
}

// convolution runs device.Convolution. Every element is summed from the bias, or 0, over the rows of the window, its
// columns, and the channels.
func (d *Device) convolution(o *device.Convolution) {
	c := newConvolution(o.ConvolutionShape)
	ys, xs, w := o.Y.F32(), d.read(0, o.X), d.window(o.Weight, c, false)
	clear(ys)
	if !c.Bias.Absent() {
		for from := 0; from < len(ys); from += c.Out {
			copy(ys[from:], c.Bias.F32())
		}
	}
	size := c.In * c.Out
	c.each(func(k, y, x, n int) {
		for i := range n {
			productRow(ys[y+i*c.Out:][:c.Out], xs[x+i*c.Stride*c.In:], 1, w[k*size:], c.Out, c.In)
		}
	})
}

// convolutionBackward runs device.ConvolutionBackward.
func (d *Device) convolutionBackward(o *device.ConvolutionBackward) {
	c := newConvolution(o.ConvolutionShape)
	dxs, dys, w := o.DX.F32(), d.read(0, o.DY), d.window(o.Weight, c, true)
	clear(dxs)
	size := c.In * c.Out
	c.each(func(k, y, x, n int) {
		for i := range n {
			productRow(dxs[x+i*c.Stride*c.In:][:c.In], dys[y+i*c.Out:], 1, w[k*size:], c.In, c.Out)
		}
	})
}

// convolutionBackwardWeight runs device.ConvolutionBackwardWeight.
func (d *Device) convolutionBackwardWeight(o *device.ConvolutionBackwardWeight) {
	c := newConvolution(o.ConvolutionShape)
	dys, xs := d.read(0, o.DY), d.read(1, o.X)
	size, window := c.In*c.Out, c.Kernel*c.Kernel
	d.kernel = grow(d.kernel, size*window)
	clear(d.kernel)
	c.each(func(k, y, x, n int) {
		for i := range c.In {
			productRow(d.kernel[k*size+i*c.Out:][:c.Out], xs[x+i:], c.Stride*c.In, dys[y:], c.Out, n)
		}
	})
	dws := o.DWeight.F32()
	for k := range window {
		for i := range c.In {
			for j := range c.Out {
				dws[(j*c.In+i)*window+k] += d.kernel[k*size+i*c.Out+j]
			}
		}
	}
}

// window is weight (Out,In,Kernel,Kernel) as (Kernel,Kernel,In,Out), or (Kernel,Kernel,Out,In) when transposed.
func (d *Device) window(weight device.Mem, c convolution, transposed bool) []float32 {
	ws, window, size := d.read(1, weight), c.Kernel*c.Kernel, c.In*c.Out
	d.kernel = grow(d.kernel, len(ws))
	for o := range c.Out {
		for i := range c.In {
			to := i*c.Out + o
			if transposed {
				to = o*c.In + i
			}
			for k, w := range ws[(o*c.In+i)*window:][:window] {
				d.kernel[k*size+to] = w
			}
		}
	}
	return d.kernel
}
