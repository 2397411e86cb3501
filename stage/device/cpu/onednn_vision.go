//go:build onednn && cgo && linux && amd64

package cpu

/*
#include "device.h"
*/
import "C"

import "github.com/avgpipe/avgpipe/stage/device"

// doVision runs the operations of convolutional networks. It reports whether op is one.
func (d *Device) doVision(op device.Op) bool {
	switch o := op.(type) {
	case *device.Convolution:
		d.convolve(o, C.AVG_FORWARD, o.Y, o.X, o.Weight, o.ConvolutionShape)
	case *device.ConvolutionBackward:
		d.convolve(o, C.AVG_BACKWARD, o.DY, o.DX, o.Weight, o.ConvolutionShape)
	case *device.ConvolutionBackwardWeight:
		d.convolve(o, C.AVG_BACKWARD_WEIGHT, o.DY, o.X, o.DWeight, o.ConvolutionShape)
	case *device.GroupMoments:
		d.ended(o, C.avg_group_moments(d.c, floats(o.Mean), floats(o.Variance), floats(o.X), normShape(o.GroupShape)))
	case *device.GroupNorm:
		d.ended(o, C.avg_group_norm(d.c, floats(o.Y), floats(o.X), floats(o.Skip), floats(o.Mean),
			floats(o.Variance), floats(o.Weight), floats(o.Bias), normShape(o.GroupShape)))
	case *device.GroupNormBackward:
		d.ended(o, C.avg_group_norm_backward(d.c, floats(o.DX), floats(o.DZ), floats(o.Sums),
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

// convolve runs one form of c; y and x are the sides of its output and its input.
func (d *Device) convolve(op device.Op, form C.int, y, x, weight device.Mem, c device.ConvolutionShape) {
	multiplied := y.Type()
	if form == C.AVG_FORWARD {
		multiplied = x.Type()
	} else {
		c.Bias = device.Mem{}
	}
	if p := d.convolution(op, form, c, multiplied); p != nil {
		d.ended(op, C.avg_product_run(d.c, p, y.Pointer(), x.Pointer(), weight.Pointer(), floats(c.Bias)))
	}
}

// convolution returns the primitive for one form of c that multiplies elements of type t.
func (d *Device) convolution(op device.Op, form C.int, c device.ConvolutionShape, t device.Type) *C.struct_avg_product {
	oh, ow := c.Output()
	shape := C.struct_avg_convolution_shape{
		b: C.int64_t(c.B), height: C.int64_t(c.Height), width: C.int64_t(c.Width), in: C.int64_t(c.In), out: C.int64_t(c.Out),
		oh: C.int64_t(oh), ow: C.int64_t(ow), kernel: C.int64_t(c.Kernel), stride: C.int64_t(c.Stride),
		padding: C.int64_t(c.Padding), form: form, bias: truth(!c.Bias.Absent()), bf16: truth(t == device.BF16),
	}
	return built(d, op, d.convolutions, shape, func(p **C.struct_avg_product) C.int { return C.avg_convolution_new(d.c, shape, p) })
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
