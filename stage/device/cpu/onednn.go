//go:build onednn && cgo && linux && amd64

package cpu

/*
#cgo CFLAGS: -O3 -std=c11 -fopenmp -Wall -Wextra
#cgo LDFLAGS: -ldnnl -lgomp -lm
#include <stdlib.h>
#include "device.h"

static const char *avg_isa(const struct avg_device *d) { return d->kernels->name; }
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
)

// OneDNN reports why this build has no oneDNN, or nil when it has.
func OneDNN() error { return nil }

// Device computes on the host's processor with oneDNN products and vector kernels.
type Device struct {
	device.HostMemory
	c            *C.struct_avg_device
	cores        []int
	memory       map[unsafe.Pointer]int // bytes of what Alloc returned
	products     map[productKey]*C.struct_avg_product
	convolutions map[C.struct_avg_convolution_shape]*C.struct_avg_convolution
	lstms        map[lstmKey]*C.struct_avg_lstm
	failure      error // the first since the last Synchronize
	yielder      yielder
	rotations    device.Rotations
}

var (
	_ device.Device   = (*Device)(nil)
	_ device.Threaded = (*Device)(nil)
)

// productKey is everything that a oneDNN primitive is built for.
type productKey struct {
	m, n, k int
	flags   C.int
}

// Open returns a device.
func Open(c Config) (*Device, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	d := &Device{
		c:            (*C.struct_avg_device)(C.calloc(1, C.sizeof_struct_avg_device)),
		cores:        c.Cores,
		memory:       map[unsafe.Pointer]int{},
		products:     map[productKey]*C.struct_avg_product{},
		convolutions: map[C.struct_avg_convolution_shape]*C.struct_avg_convolution{},
		lstms:        map[lstmKey]*C.struct_avg_lstm{},
	}
	if status := C.avg_open(d.c, C.int(c.Threads)); status != 0 {
		C.free(unsafe.Pointer(d.c))
		return nil, fmt.Errorf("cpu device: open a oneDNN engine: %w", statusError(status))
	}
	return d, nil
}

// Name implements device.Device.
func (d *Device) Name() string {
	v := C.dnnl_version()
	rule := "widened to f32"
	switch {
	case d.c.bf16_pairs != 0:
		rule = "in dot products of the processor"
	case d.c.bf16_units != 0:
		rule = "in matrix units of the processor"
	}
	return fmt.Sprintf("cpu (oneDNN %d.%d.%d, %s, bf16 %s, %s)", int(v.major), int(v.minor), int(v.patch),
		C.GoString(C.avg_isa(d.c)), rule, threads(int(d.c.threads)))
}

// Attach implements device.Threaded. The thread computes with denormals from here on, whoever had set it otherwise.
func (d *Device) Attach() error {
	denormals(true)
	return pin(d.cores)
}

// denormals makes the calling thread keep denormals, or take them for 0, and reports what it did before.
func denormals(keep bool) (kept bool) { return C.avg_denormals(truth(keep)) != 0 }

// Alloc implements device.Device. From 2 MiB on the memory is in huge pages where the system has them.
func (d *Device) Alloc(t device.Type, n int) (device.Mem, error) {
	if err := device.CheckHostAlloc(t, n); err != nil {
		return device.Mem{}, err
	}
	bytes := n * t.Bytes()
	p := C.avg_allocate(C.size_t(bytes))
	if p == nil {
		return device.Mem{}, fmt.Errorf("cpu device: allocate %d elements of %v: the system refused %d bytes, %d bytes available",
			n, t, bytes, device.HostAvailable())
	}
	d.memory[p] = bytes
	return device.NewMem(p, n, t), nil
}

// Free implements device.Device.
func (d *Device) Free(m device.Mem) {
	if m.Absent() {
		return
	}
	bytes, ok := d.memory[m.Pointer()]
	if !ok {
		panic("device: Free: memory that Alloc did not return, or freed before")
	}
	delete(d.memory, m.Pointer())
	C.avg_free(m.Pointer(), C.size_t(bytes))
}

// Synchronize implements device.Device. Operations have finished when they return; what failed in them is reported here.
func (d *Device) Synchronize() error {
	err := d.failure
	d.failure = nil
	return err
}

// fail keeps the first failure for Synchronize.
func (d *Device) fail(err error) {
	if d.failure == nil {
		d.failure = err
	}
}

// Close implements device.Device.
func (d *Device) Close() error {
	if d.c == nil {
		return nil
	}
	for _, p := range d.products {
		C.avg_product_free(p)
	}
	for _, p := range d.convolutions {
		C.avg_convolution_free(p)
	}
	for _, p := range d.lstms {
		C.avg_lstm_free(p)
	}
	for p, bytes := range d.memory {
		C.avg_free(p, C.size_t(bytes))
	}
	C.avg_close(d.c)
	C.free(unsafe.Pointer(d.c))
	*d = Device{}
	return nil
}

// statusError names a oneDNN status.
func statusError(status C.int) error {
	switch status {
	case C.dnnl_out_of_memory:
		return errors.New("out of memory")
	case C.dnnl_invalid_arguments:
		return errors.New("invalid arguments")
	case C.dnnl_unimplemented:
		return errors.New("unimplemented")
	}
	return fmt.Errorf("status %d", int(status))
}

// matMul runs device.MatMul. The primitive of a shape is built at its first use.
func (d *Device) matMul(o *device.MatMul) {
	if d.hasFewRows(o) {
		d.fewRows(o)
		return
	}
	p, err := d.product(o.Product, o.C.Type(), o.A.Type(), o.B.Type())
	if err != nil {
		d.fail(err)
		return
	}
	if status := C.avg_product_run(d.c, p, o.C.Pointer(), o.A.Pointer(), o.B.Pointer(), floats(o.Bias)); status != 0 {
		d.fail(fmt.Errorf("cpu device: product M=%d N=%d K=%d: %w", o.M, o.N, o.K, statusError(status)))
	}
	d.yielder.yield()
}

// product returns the primitive for m with C, A and B of these types.
func (d *Device) product(m device.Product, c, a, b device.Type) (*C.struct_avg_product, error) {
	key := productKey{m.M, m.N, m.K, truth(m.TransA)*C.AVG_TRANS_A | truth(m.TransB)*C.AVG_TRANS_B | truth(m.Accumulate)*C.AVG_ACCUMULATE |
		truth(!m.Bias.Absent())*C.AVG_BIAS | truth(a == device.BF16)*C.AVG_BF16_A | truth(b == device.BF16)*C.AVG_BF16_B | truth(c == device.BF16)*C.AVG_BF16_C}
	if p := d.products[key]; p != nil {
		return p, nil
	}
	var p *C.struct_avg_product
	status := C.avg_product_new(d.c, C.int64_t(m.M), C.int64_t(m.N), C.int64_t(m.K), key.flags, &p)
	if status != 0 {
		return nil, fmt.Errorf("cpu device: build the product M=%d N=%d K=%d TransA=%v TransB=%v: %w",
			m.M, m.N, m.K, m.TransA, m.TransB, statusError(status))
	}
	d.products[key] = p
	return p, nil
}

// implementation names oneDNN's kernel for m, for tests.
func (d *Device) implementation(m device.Product) string {
	p, err := d.product(m, device.F32, device.F32, device.F32)
	if err != nil {
		return err.Error()
	}
	return C.GoString(C.avg_product_implementation(p))
}

// restrict makes the device use the kernels of one instruction set, and no bf16 units, and reports whether the processor has it, for tests.
func (d *Device) restrict(isa string) bool {
	name := C.CString(isa)
	defer C.free(unsafe.Pointer(name))
	kernels := C.avg_kernels(name)
	if kernels != nil {
		d.c.kernels, d.c.bf16_units, d.c.bf16_pairs = kernels, 0, 0
	}
	return kernels != nil
}

// floats is the address of m's elements as C has it; NULL for an absent operand.
func floats(m device.Mem) *C.float { return (*C.float)(m.Pointer()) }

// size is a count as C has it.
func size(n int) C.size_t { return C.size_t(n) }
