//go:build onednn && cgo && linux && amd64

package cpu

/*
#include "device.h"
*/
import "C"

import "github.com/avgpipe/avgpipe/stage/device"

// fewRows is up to how many rows of A a product reads B as it lies, once for MOST_ROWS of them. oneDNN brings B into blocks first, which pays
// when many rows use them.
const fewRows = 2 * C.MOST_ROWS

// hasRows reports whether a product runs in kernels of our own for rows of A as they lie.
func (d *Device) hasRows(o *device.MatMul) bool {
	if o.TransA || o.M <= fewRows {
		return !o.TransA
	}
	alike := o.A.Type() == o.B.Type() && (o.A.Type() == device.F32 || o.K%2 == 0)
	return d.c.bf16_pairs != 0 && !o.TransB && alike
}

// matMulRows runs such a product.
func (d *Device) matMulRows(o *device.MatMul) {
	p := C.struct_few_rows{
		c: elements(o.C), a: elements(o.A), b: elements(o.B), bias: floats(o.Bias), m: size(o.M), n: size(o.N), k: size(o.K),
		transposed: truth(o.TransB), accumulate: truth(o.Accumulate),
	}
	if o.M <= fewRows {
		d.ended(o, C.avg_few_rows(d.c, p))
	} else {
		d.ended(o, C.avg_strips(d.c, p))
	}
}

func (d *Device) cachedAttention(o *device.CachedAttention) {
	d.ended(o, C.avg_cached_attention(d.c, C.struct_cached_attention{
		out: chars(o.Out), q: chars(o.Q), k: chars(o.K), v: chars(o.V), b: size(o.B), t: size(o.T), h: size(o.H), kv: size(o.KV), s: size(o.S),
		capacity: size(o.Capacity), past: size(o.Past), q_stride: size(o.QStride), window: size(o.Window), bf16: brain(o.K),
	}))
}
