//go:build onednn && cgo && linux && amd64

package cpu

/*
#include "device.h"
*/
import "C"

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
)

// doVision runs the operations of convolutional networks. It reports whether op is one.
func (d *Device) doVision(op device.Op) bool {
	switch o := op.(type) {
	case *device.Convolution:
		d.convolve(C.AVG_FORWARD, o.Y, o.X, o.Weight, o.ConvolutionShape)
	case *device.ConvolutionBackward:
		d.convolve(C.AVG_BACKWARD, o.DY, o.DX, o.Weight, o.ConvolutionShape)
	case *device.ConvolutionBackwardWeight:
		d.convolve(C.AVG_BACKWARD_WEIGHT, o.DY, o.X, o.DWeight, o.ConvolutionShape)
	case *device.GroupMoments:
		d.imaged("group moments", C.avg_group_moments(d.c, floats(o.Mean), floats(o.Variance), floats(o.X), normShape(o.GroupShape)))
	case *device.GroupNorm:
		d.imaged("group norm", C.avg_group_norm(d.c, floats(o.Y), floats(o.X), floats(o.Skip), floats(o.Mean),
			floats(o.Variance), floats(o.Weight), floats(o.Bias), normShape(o.GroupShape)))
	case *device.GroupNormBackward:
		d.imaged("group norm backward", C.avg_group_norm_backward(d.c, floats(o.DX), floats(o.DZ), floats(o.Sums),
			floats(o.DY), floats(o.X), floats(o.Skip), floats(o.Mean), floats(o.Variance), floats(o.Weight), floats(o.Bias), normShape(o.GroupShape)))
	case *device.MaxPool:
		C.avg_max_pool(d.c, floats(o.Y), floats(o.X), poolShape(o.Pool))
	case *device.MaxPoolBackward:
		C.avg_max_pool_backward(d.c, floats(o.DX), floats(o.DY), floats(o.X), poolShape(o.Pool))
	case *device.AveragePool:
		C.avg_average_pool(d.c, floats(o.Y), floats(o.X), size(o.B), size(o.P), size(o.C))
	case *device.AveragePoolBackward:
		C.avg_average_pool_backward(d.c, floats(o.DX), floats(o.DY), size(o.B), size(o.P), size(o.C))
	case *device.Transpose:
		C.avg_transpose(d.c, floats(o.Y), floats(o.X), size(o.N), size(o.Rows), size(o.Columns))
	default:
		return false
	}
	return true
}

// convolve runs one form of c; y and x are the sides of its output and its input. The primitive of a shape is built at its first use.
func (d *Device) convolve(form C.int, y, x, weight device.Mem, c device.ConvolutionShape) {
	if form != C.AVG_FORWARD {
		c.Bias = device.Mem{}
	}
	multiplied := y.Type()
	if form == C.AVG_FORWARD {
		multiplied = x.Type()
	}
	p, err := d.convolution(form, c, multiplied)
	if err != nil {
		d.fail(err)
		return
	}
	if status := C.avg_convolution_run(d.c, p, y.Pointer(), x.Pointer(), weight.Pointer(), floats(c.Bias)); status != 0 {
		d.fail(fmt.Errorf("cpu device: %s: %w", words(form, c), statusError(status)))
	}
	d.yielder.yield()
}

// words describes a convolution for messages.
func words(form C.int, c device.ConvolutionShape) string {
	kind := [...]string{C.AVG_FORWARD: "", C.AVG_BACKWARD: "input gradient of the ", C.AVG_BACKWARD_WEIGHT: "weight gradient of the "}[form]
	return fmt.Sprintf("%sconvolution %dx%dx%d to %d channels, window %d, stride %d, padding %d, %d samples",
		kind, c.Height, c.Width, c.In, c.Out, c.Kernel, c.Stride, c.Padding, c.B)
}

// convolution returns the primitive for one form of c that multiplies elements of type t.
func (d *Device) convolution(form C.int, c device.ConvolutionShape, t device.Type) (*C.struct_avg_convolution, error) {
	oh, ow := c.Output()
	shape := C.struct_avg_convolution_shape{
		b: C.int64_t(c.B), height: C.int64_t(c.Height), width: C.int64_t(c.Width), in: C.int64_t(c.In), out: C.int64_t(c.Out),
		oh: C.int64_t(oh), ow: C.int64_t(ow), kernel: C.int64_t(c.Kernel), stride: C.int64_t(c.Stride),
		padding: C.int64_t(c.Padding), form: form, bias: truth(!c.Bias.Absent()), bf16: truth(t == device.BF16),
	}
	if p := d.convolutions[shape]; p != nil {
		return p, nil
	}
	var p *C.struct_avg_convolution
	if status := C.avg_convolution_new(d.c, shape, &p); status != 0 {
		return nil, fmt.Errorf("cpu device: build the %s: %w", words(form, c), statusError(status))
	}
	d.convolutions[shape] = p
	return p, nil
}

// convolutionImplementations names oneDNN's kernels for the three forms of c on elements of type t, for tests.
func (d *Device) convolutionImplementations(c device.ConvolutionShape, t device.Type) []string {
	var names []string
	for form := range C.int(3) {
		p, err := d.convolution(form, c, t)
		if err != nil {
			return []string{err.Error()}
		}
		names = append(names, C.GoString(C.avg_convolution_implementation(p)))
	}
	return names
}

// imaged keeps the failure of an operation that found no memory for scratch.
func (d *Device) imaged(op string, status C.int) {
	if status != 0 {
		d.fail(fmt.Errorf("cpu device: %s: no memory for scratch, %d bytes available", op, device.HostAvailable()))
	}
}

func normShape(n device.GroupShape) C.struct_group_norm {
	return C.struct_group_norm{
		b: size(n.B), p: size(n.P), c: size(n.C), groups: size(n.Groups), epsilon: C.float(n.Epsilon), relu: truth(n.ReLU),
	}
}

func poolShape(p device.Pool) C.struct_pool {
	oh, ow := p.Output()
	return C.struct_pool{
		b: size(p.B), height: size(p.Height), width: size(p.Width), c: size(p.Channels), oh: size(oh), ow: size(ow),
		kernel: size(p.Kernel), stride: size(p.Stride), padding: size(p.Padding),
	}
}
