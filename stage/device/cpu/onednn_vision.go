//go:build onednn && cgo && linux && amd64

package cpu

/*
#include "vision.h"
*/
import "C"

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
)

// vision is what the device keeps for convolutional networks.
type vision struct {
	c            C.struct_avg_vision
	convolutions map[C.struct_avg_convolution_shape]*C.struct_avg_convolution
}

// close frees everything.
func (v *vision) close() {
	for _, c := range v.convolutions {
		C.avg_convolution_free(c)
	}
	C.avg_vision_close(&v.c)
}

// Convolution implements device.Device. The primitive of a shape is built at its first use.
func (d *Device) Convolution(y, x, weight device.Mem, c device.Convolution) {
	c.Check(y, x, weight)
	d.convolve(C.AVG_FORWARD, y, x, weight, c)
}

// ConvolutionBackward implements device.Device.
func (d *Device) ConvolutionBackward(dx, dy, weight device.Mem, c device.Convolution) {
	c.CheckBackward(dx, dy, weight)
	c.Bias = device.Mem{}
	d.convolve(C.AVG_BACKWARD, dy, dx, weight, c)
}

// ConvolutionBackwardWeight implements device.Device.
func (d *Device) ConvolutionBackwardWeight(dweight, dy, x device.Mem, c device.Convolution) {
	c.CheckBackwardWeight(dweight, dy, x)
	c.Bias = device.Mem{}
	d.convolve(C.AVG_BACKWARD_WEIGHT, dy, x, dweight, c)
}

// convolve runs one form of c; y and x are the sides of its output and its input.
func (d *Device) convolve(form C.int, y, x, weight device.Mem, c device.Convolution) {
	p, err := d.convolution(form, c)
	if err != nil {
		d.fail(err)
		return
	}
	if status := C.avg_convolution_run(d.c, &d.vision.c, p, floats(y), floats(x), floats(weight), floats(c.Bias)); status != 0 {
		d.fail(fmt.Errorf("cpu device: %s: %w", words(form, c), statusError(status)))
	}
	d.yielder.yield()
}

// words describes a convolution for messages.
func words(form C.int, c device.Convolution) string {
	kind := [...]string{C.AVG_FORWARD: "", C.AVG_BACKWARD: "input gradient of the ", C.AVG_BACKWARD_WEIGHT: "weight gradient of the "}[form]
	return fmt.Sprintf("%sconvolution %dx%dx%d to %d channels, window %d, stride %d, padding %d, %d samples",
		kind, c.Height, c.Width, c.In, c.Out, c.Kernel, c.Stride, c.Padding, c.B)
}

// convolution returns the primitive for one form of c.
func (d *Device) convolution(form C.int, c device.Convolution) (*C.struct_avg_convolution, error) {
	oh, ow := c.Output()
	shape := C.struct_avg_convolution_shape{
		b: C.int64_t(c.B), height: C.int64_t(c.Height), width: C.int64_t(c.Width), in: C.int64_t(c.In), out: C.int64_t(c.Out),
		oh: C.int64_t(oh), ow: C.int64_t(ow), kernel: C.int64_t(c.Kernel), stride: C.int64_t(c.Stride),
		padding: C.int64_t(c.Padding), form: form, bias: truth(!c.Bias.Absent()),
	}
	if p := d.vision.convolutions[shape]; p != nil {
		return p, nil
	}
	var p *C.struct_avg_convolution
	if status := C.avg_convolution_new(d.c, shape, &p); status != 0 {
		return nil, fmt.Errorf("cpu device: build the %s: %w", words(form, c), statusError(status))
	}
	if d.vision.convolutions == nil {
		d.vision.convolutions = map[C.struct_avg_convolution_shape]*C.struct_avg_convolution{}
	}
	d.vision.convolutions[shape] = p
	return p, nil
}

// convolutionImplementations names oneDNN's kernels for the three forms of c, for tests.
func (d *Device) convolutionImplementations(c device.Convolution) []string {
	var names []string
	for form := range C.int(3) {
		p, err := d.convolution(form, c)
		if err != nil {
			return []string{err.Error()}
		}
		names = append(names, C.GoString(C.avg_convolution_implementation(p)))
	}
	return names
}

// check keeps the failure of an operation that found no memory for scratch.
func (v *vision) check(d *Device, op string, status C.int) {
	if status != 0 {
		d.fail(fmt.Errorf("cpu device: %s: no memory for scratch, %d bytes available", op, device.HostAvailable()))
	}
}

func normShape(n device.GroupNorm) C.struct_group_norm {
	return C.struct_group_norm{
		b: size(n.B), p: size(n.P), c: size(n.C), groups: size(n.Groups), epsilon: C.float(n.Epsilon), relu: truth(n.ReLU),
	}
}

// GroupMoments implements device.Device.
func (d *Device) GroupMoments(mean, variance, x device.Mem, n device.GroupNorm) {
	n.CheckMoments(mean, variance, x)
	d.vision.check(d, "group moments", C.avg_group_moments(d.c, &d.vision.c, floats(mean), floats(variance), floats(x), normShape(n)))
}

// GroupNorm implements device.Device.
func (d *Device) GroupNorm(y, x, skip, mean, variance, weight, bias device.Mem, n device.GroupNorm) {
	n.CheckForward(y, x, skip, mean, variance, weight, bias)
	d.vision.check(d, "group norm", C.avg_group_norm(d.c, &d.vision.c, floats(y), floats(x), floats(skip), floats(mean),
		floats(variance), floats(weight), floats(bias), normShape(n)))
}

// GroupNormBackward implements device.Device.
func (d *Device) GroupNormBackward(dx, dz, sums, dy, x, skip, mean, variance, weight, bias device.Mem, n device.GroupNorm) {
	n.CheckBackward(dx, dz, sums, dy, x, skip, mean, variance, weight, bias)
	d.vision.check(d, "group norm backward", C.avg_group_norm_backward(d.c, &d.vision.c, floats(dx), floats(dz), floats(sums),
		floats(dy), floats(x), floats(skip), floats(mean), floats(variance), floats(weight), floats(bias), normShape(n)))
}

func poolShape(p device.Pool) C.struct_pool {
	oh, ow := p.Output()
	return C.struct_pool{
		b: size(p.B), height: size(p.Height), width: size(p.Width), c: size(p.Channels), oh: size(oh), ow: size(ow),
		kernel: size(p.Kernel), stride: size(p.Stride), padding: size(p.Padding),
	}
}

// MaxPool implements device.Device.
func (d *Device) MaxPool(y, x device.Mem, p device.Pool) {
	p.Check("MaxPool", y, x)
	C.avg_max_pool(d.c, floats(y), floats(x), poolShape(p))
}

// MaxPoolBackward implements device.Device.
func (d *Device) MaxPoolBackward(dx, dy, x device.Mem, p device.Pool) {
	const op = "MaxPoolBackward"
	p.Check(op, dy, x)
	p.Check(op, dy, dx)
	C.avg_max_pool_backward(d.c, floats(dx), floats(dy), floats(x), poolShape(p))
}

// AveragePool implements device.Device.
func (d *Device) AveragePool(y, x device.Mem, b, p, c int) {
	device.CheckAveragePool("AveragePool", y, x, b, p, c)
	C.avg_average_pool(d.c, floats(y), floats(x), size(b), size(p), size(c))
}

// AveragePoolBackward implements device.Device.
func (d *Device) AveragePoolBackward(dx, dy device.Mem, b, p, c int) {
	device.CheckAveragePool("AveragePoolBackward", dy, dx, b, p, c)
	C.avg_average_pool_backward(d.c, floats(dx), floats(dy), size(b), size(p), size(c))
}

// ReLU implements device.Device.
func (d *Device) ReLU(y, x device.Mem) {
	device.CheckReLU("ReLU", y, x)
	C.avg_relu(d.c, floats(y), floats(x), size(x.Len()))
}

// ReLUBackward implements device.Device.
func (d *Device) ReLUBackward(dx, dy, x device.Mem) {
	device.CheckReLU("ReLUBackward", dx, dy, x)
	C.avg_relu_backward(d.c, floats(dx), floats(dy), floats(x), size(x.Len()))
}

// Transpose implements device.Device.
func (d *Device) Transpose(y, x device.Mem, n, rows, columns int) {
	device.CheckTranspose(y, x, n, rows, columns)
	C.avg_transpose(d.c, floats(y), floats(x), size(n), size(rows), size(columns))
}
