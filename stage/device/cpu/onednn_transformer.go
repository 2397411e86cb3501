//go:build onednn && cgo && linux && amd64

package cpu

/*
#include "transformer_ops.h"
*/
import "C"

import (
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
)

// brain says in C's terms whether m holds bfloat16 numbers.
func brain(m device.Mem) C.int { return truth(m.Type() == device.BF16) }

// Dropout implements device.Device.
func (d *Device) Dropout(y, x device.Mem, o device.Dropout) {
	o.Check(y, x)
	threshold, scale := o.Derived()
	C.avg_dropout(d.c, y.Pointer(), x.Pointer(), size(o.Rows/o.Share), size(o.Share), size(o.Columns), C.uint64_t(o.First),
		C.struct_dropout{key: C.uint64_t(o.Key), threshold: C.uint32_t(threshold), scale: C.float(scale)}, brain(x))
}

// RMSNorm implements device.Device.
func (d *Device) RMSNorm(y, rstd, x, weight device.Mem, rows, columns int, epsilon float32) {
	device.CheckRMSNorm(y, rstd, x, weight, rows, columns)
	C.avg_rms_norm(d.c, y.Pointer(), floats(rstd), floats(x), floats(weight), size(rows), size(columns), C.float(epsilon), brain(y))
}

// RMSNormBackward implements device.Device.
func (d *Device) RMSNormBackward(dx, dy, x, rstd, weight, plus device.Mem, rows, columns int) {
	device.CheckRMSNormBackward(dx, dy, x, rstd, weight, plus, rows, columns)
	C.avg_rms_norm_backward(d.c, floats(dx), dy.Pointer(), floats(x), floats(rstd), floats(weight), floats(plus), size(rows),
		size(columns), brain(dy))
}

// RMSNormBackwardWeight implements device.Device.
func (d *Device) RMSNormBackwardWeight(dweight, dy, x, rstd device.Mem, rows, columns int) {
	device.CheckRMSNormBackwardWeight(dweight, dy, x, rstd, rows, columns)
	C.avg_rms_norm_backward_weight(d.c, floats(dweight), dy.Pointer(), floats(x), floats(rstd), size(rows), size(columns), brain(dy))
}

// Rotate implements device.Device.
func (d *Device) Rotate(y, x device.Mem, o device.Rotation) {
	o.Check(y, x)
	table := d.rotations.Table(o)
	shape := C.struct_rotation{t: size(o.T), heads: size(o.Heads), s: size(o.S), inverse: truth(o.Inverse)}
	C.avg_rotate(d.c, y.Pointer(), x.Pointer(), shape, (*C.float)(unsafe.Pointer(unsafe.SliceData(table))), size(o.B*o.T), brain(x))
}

// SwiGLU implements device.Device.
func (d *Device) SwiGLU(y, gate, up device.Mem) {
	device.CheckSame("SwiGLU", y, gate, up)
	C.avg_swiglu(d.c, y.Pointer(), gate.Pointer(), up.Pointer(), size(y.Len()), brain(y))
}

// SwiGLUBackward implements device.Device.
func (d *Device) SwiGLUBackward(dgate, dup, dy, gate, up device.Mem) {
	device.CheckSame("SwiGLUBackward", dgate, dup, dy, gate, up)
	C.avg_swiglu_backward(d.c, dgate.Pointer(), dup.Pointer(), dy.Pointer(), gate.Pointer(), up.Pointer(), size(dy.Len()), brain(dy))
}

// GELUErf implements device.Device.
func (d *Device) GELUErf(y, x device.Mem) {
	device.CheckSame("GELUErf", y, x)
	C.avg_gelu_erf(d.c, y.Pointer(), x.Pointer(), size(y.Len()), brain(y))
}

// GELUErfBackward implements device.Device.
func (d *Device) GELUErfBackward(dx, dy, x device.Mem) {
	device.CheckSame("GELUErfBackward", dx, dy, x)
	C.avg_gelu_erf_backward(d.c, dx.Pointer(), dy.Pointer(), x.Pointer(), size(dx.Len()), brain(dx))
}

// Tanh implements device.Device.
func (d *Device) Tanh(y, x device.Mem) {
	same("Tanh", y.Len(), y, x)
	C.avg_tanh(d.c, floats(y), floats(x), size(y.Len()))
}

// TanhBackward implements device.Device.
func (d *Device) TanhBackward(dx, dy, y device.Mem) {
	same("TanhBackward", dx.Len(), dx, dy, y)
	C.avg_tanh_backward(d.c, floats(dx), floats(dy), floats(y), size(dx.Len()))
}

// AddRows implements device.Device.
func (d *Device) AddRows(y, table, ids device.Mem, rows, width int) {
	device.CheckAddRows(y, table, ids, rows, width)
	C.avg_add_rows(d.c, floats(y), floats(table), integers(ids), size(rows), size(width))
}
