//go:build onednn && cgo && linux && amd64

package cpu

/*
#include "transformer_ops.h"
*/
import "C"

import "github.com/avgpipe/avgpipe/stage/device"

// Dropout implements device.Device.
func (d *Device) Dropout(y, x device.Mem, o device.Dropout) {
	o.Check(y, x)
	threshold, scale := o.Derived()
	C.avg_dropout(d.c, y.Pointer(), x.Pointer(), size(o.Rows/o.Share), size(o.Share), size(o.Columns), C.uint64_t(o.First),
		C.struct_dropout{key: C.uint64_t(o.Key), threshold: C.uint32_t(threshold), scale: C.float(scale)},
		truth(x.Type() == device.BF16))
}
