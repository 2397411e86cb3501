//go:build onednn && cgo && linux && amd64

package cpu

import "github.com/avgpipe/avgpipe/stage/device"

// Restrict makes the device use the kernels of one instruction set and reports whether the processor has it.
func (d *Device) Restrict(isa string) bool { return d.restrict(isa) }

// Denormals makes the calling thread keep denormals, or take them for 0, and reports what it did before.
func Denormals(keep bool) bool { return denormals(keep) }

// Implementation names oneDNN's kernel for m.
func (d *Device) Implementation(m device.Product) string {
	return d.implementation(d.product(&device.MatMul{Product: m}))
}

// ConvolutionImplementations names oneDNN's kernels for the three forms of c on elements of type t.
func (d *Device) ConvolutionImplementations(c device.ConvolutionShape, t device.Type) []string {
	op := &device.Convolution{ConvolutionShape: c}
	return []string{
		d.implementation(d.convolution(op, 0, c, t)), d.implementation(d.convolution(op, 1, c, t)), d.implementation(d.convolution(op, 2, c, t)),
	}
}
