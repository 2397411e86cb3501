//go:build cuda && cgo && linux && amd64

package cuda

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/dnn"
)

// lowering is a convolution as products: its windows are the rows of a matrix, (Kernel,Kernel,In), and weights lie in the same order. Windows are
// laid out for some samples at once, as the shape says, so that they take bounded scratch and results are the same in each run.
type lowering struct {
	device.ConvolutionShape
	form     dnn.Form
	operands device.Type
	pixels   int // of y
	window   int // pixels of a window
	samples  int // of a product
}

// mostWindowBytes bounds the windows of a product; a sample takes what it takes. Tests change it.
var mostWindowBytes = 64 << 20

func lower(f dnn.Form, s device.ConvolutionShape, operands device.Type) lowering {
	height, width := s.Output()
	l := lowering{ConvolutionShape: s, form: f, operands: operands, pixels: height * width, window: s.Kernel * s.Kernel, samples: s.B}
	if !l.direct() {
		l.samples = min(max(mostWindowBytes/(l.windowType().Bytes()*l.windows(1)), 1), s.B)
	}
	return l
}

// columns is the elements of a window.
func (l lowering) columns() int { return l.window * l.In }

// direct reports whether the rows of x are the windows.
func (l lowering) direct() bool { return l.Kernel == 1 && l.Stride == 1 }

// windows is the elements of the windows of so many samples.
func (l lowering) windows(samples int) int { return samples * l.pixels * l.columns() }

// windowType is that of windows: the gradients of windows are sums.
func (l lowering) windowType() device.Type {
	if l.form == dnn.Backward {
		return device.F32
	}
	return l.operands
}

// filterType is that of weights, or of their gradients, which are sums.
func (l lowering) filterType() device.Type {
	if l.form == dnn.BackwardWeight {
		return device.F32
	}
	return l.operands
}

// bytes is the scratch of the products: weights in the order of windows, unless that is their own, and windows.
func (l lowering) bytes() int {
	bytes := 0
	if l.window > 1 {
		bytes = room(l.filterType(), l.Out*l.columns())
	}
	if !l.direct() {
		bytes += room(l.windowType(), l.windows(l.samples))
	}
	return bytes
}

// each runs a product for some samples at a time: rows of y from one on, and the samples.
func (l lowering) each(run func(first, samples int)) {
	for first := 0; first < l.B; first += l.samples {
		run(first, min(l.samples, l.B-first))
	}
}

// image are so many samples of x, and outputs of y.
func (l lowering) image(x device.Mem, first, samples int) device.Mem {
	n := l.Height * l.Width * l.In
	return x.Slice(first*n, samples*n)
}

func (l lowering) outputs(y device.Mem, first, samples int) device.Mem {
	n := l.pixels * l.Out
	return y.Slice(first*n, samples*n)
}

// windowed are the arguments CONVOLUTION of kernels/convolution.cu.
func (c *call) windowed(s device.ConvolutionShape) *call {
	height, width := s.Output()
	return c.int(s.Height).int(s.Width).int(s.Kernel).int(s.Stride).int(s.Padding).int(height).int(width)
}

// unit is the most bytes that a kernel may copy at once of channels at two places, and the kernel.
func unit(x, y device.Mem, channels int) (bytes int, kernel string) {
	bytes = x.Type().Bytes()
	switch {
	case channels*bytes%16 == 0 && uintptr(x.Pointer())%16 == 0 && uintptr(y.Pointer())%16 == 0:
		return 16, "windows_of_16"
	case bytes == 4:
		return 4, "windows_of_4"
	}
	return 2, "windows_of_2"
}

// layWindows sets windows of x, some samples of it.
func (d *Device) layWindows(windows, x device.Mem, s device.ConvolutionShape) {
	bytes, kernel := unit(windows, x, s.In)
	n := windows.Bytes() / bytes
	d.launch(kernel).mem(windows).mem(x).windowed(s).int(s.In * x.Type().Bytes() / bytes).int(n).each(n)
}

// layFilter sets weights in the order of windows.
func (d *Device) layFilter(filter, weight device.Mem, s device.ConvolutionShape) {
	n := filter.Len()
	d.launch("lay_filter").typed(filter).typed(weight).int(s.In).int(s.Kernel * s.Kernel).int(n).each(n)
}

// addFilter adds the gradients of weights in the order of windows to those in their own.
func (d *Device) addFilter(dweight, sums device.Mem, s device.ConvolutionShape) {
	n := dweight.Len()
	d.launch("add_filter").mem(dweight).mem(sums).int(s.In).int(s.Kernel * s.Kernel).int(n).each(n)
}

// lowered begins a convolution by products: its scratch, and the weights for it.
func (d *Device) lowered(op device.Op, l lowering, weight device.Mem) (filter, windows device.Mem, ok bool) {
	s, ok := d.scratchOf(op)
	if !ok {
		return filter, windows, false
	}
	filter = weight
	if l.window > 1 {
		if filter = s.take(l.filterType(), weight.Len()); l.form != dnn.BackwardWeight {
			d.layFilter(filter, weight, l.ConvolutionShape)
		}
	}
	if !l.direct() {
		windows = s.take(l.windowType(), l.windows(l.samples))
	}
	return filter, windows, true
}

// rows are the windows of some samples of x.
func (d *Device) rows(l lowering, windows, x device.Mem, first, samples int) device.Mem {
	x = l.image(x, first, samples)
	if l.direct() {
		return x
	}
	windows = windows.Slice(0, l.windows(samples))
	d.layWindows(windows, x, l.ConvolutionShape)
	return windows
}

func (d *Device) convolution(o *device.Convolution) {
	l := lower(dnn.Forward, o.ConvolutionShape, o.X.Type())
	if d.byLibrary(o, l, o.X, o.Y, o.Weight) {
		return
	}
	filter, windows, ok := d.lowered(o, l, o.Weight)
	if !ok {
		return
	}
	l.each(func(first, samples int) {
		d.matMul(&device.MatMul{C: l.outputs(o.Y, first, samples), A: d.rows(l, windows, o.X, first, samples), B: filter, Product: device.Product{
			M: samples * l.pixels, N: l.Out, K: l.columns(), TransB: true, Bias: o.Bias,
		}})
	})
}

func (d *Device) convolutionBackward(o *device.ConvolutionBackward) {
	l := lower(dnn.Backward, o.ConvolutionShape, o.DY.Type())
	if d.byLibrary(o, l, o.DX, o.DY, o.Weight) {
		return
	}
	filter, windows, ok := d.lowered(o, l, o.Weight)
	if !ok {
		return
	}
	l.each(func(first, samples int) {
		dx := l.image(o.DX, first, samples)
		product := device.MatMul{C: dx, A: l.outputs(o.DY, first, samples), B: filter, Product: device.Product{
			M: samples * l.pixels, N: l.columns(), K: l.Out,
		}}
		if l.direct() {
			d.matMul(&product)
			return
		}
		product.C = windows.Slice(0, l.windows(samples))
		d.matMul(&product)
		n := dx.Len()
		d.launch("gather_windows").mem(dx).mem(windows).windowed(l.ConvolutionShape).int(l.In).int(n).each(n)
	})
}

func (d *Device) convolutionBackwardWeight(o *device.ConvolutionBackwardWeight) {
	l := lower(dnn.BackwardWeight, o.ConvolutionShape, o.X.Type())
	if d.byLibrary(o, l, o.X, o.DY, o.DWeight) {
		return
	}
	filter, windows, ok := d.lowered(o, l, o.DWeight)
	if !ok {
		return
	}
	l.each(func(first, samples int) {
		d.matMul(&device.MatMul{C: filter, A: l.outputs(o.DY, first, samples), B: d.rows(l, windows, o.X, first, samples), Product: device.Product{
			M: l.Out, N: l.columns(), K: samples * l.pixels, TransA: true, Accumulate: first > 0 || l.window == 1,
		}})
	})
	if l.window > 1 {
		d.addFilter(o.DWeight, filter, l.ConvolutionShape)
	}
}
