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
	convolutions map[C.struct_avg_convolution_shape]*C.struct_avg_product
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
		convolutions: map[C.struct_avg_convolution_shape]*C.struct_avg_product{},
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

// Close implements device.Device.
func (d *Device) Close() error {
	if d.c == nil {
		return nil
	}
	for _, p := range d.products {
		C.avg_product_free(p)
	}
	for _, p := range d.convolutions {
		C.avg_product_free(p)
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

// ended keeps the failure of an operation, of a status other than 0, for Synchronize. It lets the scheduler run.
func (d *Device) ended(op device.Op, status C.int) {
	if status != 0 && d.failure == nil {
		d.failure = fmt.Errorf("cpu device: %s: %w", device.Describe(op), statusError(status))
	}
	d.yielder.yield()
}

// statusError names a oneDNN status, or that of kernels which found no memory for scratch.
func statusError(status C.int) error {
	switch status {
	case C.dnnl_out_of_memory, -1:
		return fmt.Errorf("out of memory, %d bytes available", device.HostAvailable())
	case C.dnnl_invalid_arguments:
		return errors.New("invalid arguments")
	case C.dnnl_unimplemented:
		return errors.New("unimplemented")
	}
	return fmt.Errorf("status %d", int(status))
}

// built returns what op needs from those that have been built, by key. It is built at its first use; nil when that failed.
func built[K, P comparable](d *Device, op device.Op, all map[K]P, key K, build func(*P) C.int) P {
	if p, ok := all[key]; ok {
		return p
	}
	var p P
	if status := build(&p); status != 0 {
		d.ended(op, status)
	} else {
		all[key] = p
	}
	return p
}

func (d *Device) matMul(o *device.MatMul) {
	if d.hasRows(o) {
		d.matMulRows(o)
	} else if p := d.product(o); p != nil {
		d.ended(o, C.avg_product_run(d.c, p, o.C.Pointer(), o.A.Pointer(), o.B.Pointer(), floats(o.Bias)))
	}
}

// product returns the primitive for a product.
func (d *Device) product(o *device.MatMul) *C.struct_avg_product {
	key := productKey{o.M, o.N, o.K, truth(o.TransA)*C.AVG_TRANS_A | truth(o.TransB)*C.AVG_TRANS_B | truth(o.Accumulate)*C.AVG_ACCUMULATE |
		truth(!o.Bias.Absent())*C.AVG_BIAS | brain(o.A)*C.AVG_BF16_A | brain(o.B)*C.AVG_BF16_B | brain(o.C)*C.AVG_BF16_C}
	return built(d, o, d.products, key, func(p **C.struct_avg_product) C.int {
		return C.avg_product_new(d.c, C.int64_t(key.m), C.int64_t(key.n), C.int64_t(key.k), key.flags, p)
	})
}

// implementation names oneDNN's kernel for a product, for tests.
func (d *Device) implementation(p *C.struct_avg_product) string {
	if p == nil {
		return d.Synchronize().Error()
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
