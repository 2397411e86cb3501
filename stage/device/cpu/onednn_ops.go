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

// same panics unless every operand has n float32.
func same(op string, n int, operands ...device.Mem) {
	for _, m := range operands {
		device.Need(op, "operand", m, device.F32, n)
	}
}

// floating panics unless every operand has n elements, F32 or BF16.
func floating(op string, n int, operands ...device.Mem) {
	for _, m := range operands {
		device.NeedFloating(op, "operand", m, n)
	}
}

// elements is m as C has operands of either type.
func elements(m device.Mem) C.struct_elements {
	return C.struct_elements{data: m.Pointer(), bf16: truth(m.Type() == device.BF16)}
}

// Zero implements device.Device.
func (d *Device) Zero(x device.Mem) {
	C.avg_zero(d.c, (*C.char)(x.Pointer()), size(x.Bytes()))
}

// Copy implements device.Device.
func (d *Device) Copy(y, x device.Mem) {
	device.Need("Copy", "x", x, y.Type(), y.Len())
	C.avg_copy(d.c, (*C.char)(y.Pointer()), (*C.char)(x.Pointer()), size(y.Bytes()))
}

// Scale implements device.Device.
func (d *Device) Scale(x device.Mem, a float32) {
	same("Scale", x.Len(), x)
	C.avg_scale(d.c, floats(x), C.float(a), size(x.Len()))
}

// Axpy implements device.Device.
func (d *Device) Axpy(y device.Mem, a float32, x device.Mem) {
	same("Axpy", y.Len(), y, x)
	C.avg_axpy(d.c, floats(y), C.float(a), floats(x), size(y.Len()))
}

// Lerp implements device.Device.
func (d *Device) Lerp(y device.Mem, a float32, x device.Mem) {
	same("Lerp", y.Len(), y, x)
	if a == 1 {
		d.Copy(y, x)
		return
	}
	C.avg_lerp(d.c, floats(y), C.float(a), floats(x), size(y.Len()))
}

// Mul implements device.Device.
func (d *Device) Mul(y, x device.Mem) {
	same("Mul", y.Len(), y, x)
	C.avg_mul(d.c, floats(y), floats(x), size(y.Len()))
}

// Add implements device.Device.
func (d *Device) Add(out, a, b device.Mem) {
	floating("Add", out.Len(), out, a, b)
	C.avg_add(d.c, elements(out), elements(a), elements(b), size(out.Len()))
}

// Convert implements device.Device.
func (d *Device) Convert(y, x device.Mem) {
	floating("Convert", x.Len(), y, x)
	C.avg_convert(d.c, elements(y), elements(x), size(x.Len()))
}

// Dot implements device.Device.
func (d *Device) Dot(x, y device.Mem) float64 {
	same("Dot", x.Len(), x, y)
	return float64(C.avg_dot(d.c, floats(x), floats(y), size(x.Len())))
}

// SumRows implements device.Device.
func (d *Device) SumRows(sum, x device.Mem, rows, columns int) {
	same("SumRows", columns, sum)
	floating("SumRows", rows*columns, x)
	C.avg_sum_rows(d.c, floats(sum), elements(x), size(rows), size(columns))
}

// GELU implements device.Device.
func (d *Device) GELU(y, x device.Mem) {
	floating("GELU", y.Len(), y)
	device.Need("GELU", "x", x, y.Type(), y.Len())
	C.avg_gelu(d.c, elements(y), elements(x), size(y.Len()))
}

// GELUBackward implements device.Device.
func (d *Device) GELUBackward(dx, dy, x device.Mem) {
	floating("GELUBackward", dx.Len(), dx)
	device.Need("GELUBackward", "dy", dy, dx.Type(), dx.Len())
	device.Need("GELUBackward", "x", x, dx.Type(), dx.Len())
	C.avg_gelu_backward(d.c, elements(dx), elements(dy), elements(x), size(dx.Len()))
}

// LayerNorm implements device.Device.
func (d *Device) LayerNorm(y, mean, rstd, x, weight, bias device.Mem, rows, columns int, epsilon float32) {
	device.CheckLayerNorm(y, mean, rstd, x, weight, bias, rows, columns)
	C.avg_layer_norm(d.c, elements(y), floats(mean), floats(rstd), floats(x), floats(weight), floats(bias),
		size(rows), size(columns), C.float(epsilon))
}

// LayerNormBackward implements device.Device.
func (d *Device) LayerNormBackward(dx, dy, x, mean, rstd, weight, plus device.Mem, rows, columns int) {
	device.CheckLayerNormBackward(dx, dy, x, mean, rstd, weight, plus, rows, columns)
	C.avg_layer_norm_backward(d.c, floats(dx), elements(dy), floats(x), floats(mean), floats(rstd), floats(weight),
		floats(plus), size(rows), size(columns))
}

// LayerNormBackwardWeight implements device.Device.
func (d *Device) LayerNormBackwardWeight(dweight, dbias, dy, x, mean, rstd device.Mem, rows, columns int) {
	device.CheckLayerNormBackwardWeight(dweight, dbias, dy, x, mean, rstd, rows, columns)
	C.avg_layer_norm_backward_weight(d.c, floats(dweight), floats(dbias), elements(dy), floats(x), floats(mean), floats(rstd),
		size(rows), size(columns))
}

// Embed implements device.Device.
func (d *Device) Embed(out, tokens, positions, ids device.Mem, b, t, width int) {
	device.CheckEmbed("Embed", out, tokens, positions, ids, b, t, width)
	C.avg_embed(d.c, floats(out), floats(tokens), floats(positions), integers(ids), size(b*t), size(t), size(width))
}

// EmbedBackward implements device.Device.
func (d *Device) EmbedBackward(dtokens, dpositions, dout, ids device.Mem, b, t, width int) {
	device.CheckEmbed("EmbedBackward", dout, dtokens, dpositions, ids, b, t, width)
	C.avg_embed_backward(d.c, floats(dtokens), floats(dpositions), floats(dout), integers(ids), size(b*t), size(t), size(width))
}

// AttentionSaved implements device.Device: the logarithm of every row's sum of exponentials (B,H,T).
func (d *Device) AttentionSaved(a device.Attention) int { return a.B * a.H * a.T }

// attention is the shape of a and its operands as C has them; the backward's are absent in a forward.
func attention(a device.Attention, out, saved, q, k, v device.Mem) C.struct_attention {
	a = a.WithDefaults()
	threshold, scale := a.Dropout.Derived()
	return C.struct_attention{
		out: chars(out), q: chars(q), k: chars(k), v: chars(v), lse: floats(saved), mask: integers(a.Mask),
		b: size(a.B), t: size(a.T), h: size(a.H), kv: size(a.KV), s: size(a.S),
		q_stride: size(a.QStride), kv_stride: size(a.KVStride), bf16: truth(q.Type() == device.BF16), bidirectional: truth(a.Bidirectional),
		window:  size(a.Window),
		dropout: C.struct_dropout{key: C.uint64_t(a.Dropout.Key), threshold: C.uint32_t(threshold), scale: C.float(scale)},
		first:   C.uint64_t(a.Dropout.First),
	}
}

// Attention implements device.Device.
func (d *Device) Attention(out, saved, q, k, v device.Mem, a device.Attention) {
	a.CheckForward(out, saved, q, k, v, d.AttentionSaved(a))
	x := attention(a, out, saved, q, k, v)
	if C.avg_attention(d.c, x) != 0 {
		d.noScratch("attention", a)
	}
}

// AttentionBackward implements device.Device.
func (d *Device) AttentionBackward(dq, dk, dv, dout, q, k, v, out, saved device.Mem, a device.Attention) {
	a.CheckBackward(dq, dk, dv, dout, q, k, v, out, saved, d.AttentionSaved(a))
	x := attention(a, out, saved, q, k, v)
	x.dq, x.dk, x.dv, x.dout = chars(dq), chars(dk), chars(dv), chars(dout)
	if C.avg_attention_backward(d.c, x) != 0 {
		d.noScratch("attention backward", a)
	}
}

func (d *Device) noScratch(op string, a device.Attention) {
	d.fail(fmt.Errorf("cpu device: %s of T=%d S=%d: no memory for scratch, %d bytes available", op, a.T, a.S, device.HostAvailable()))
}

// CrossEntropy implements device.Device.
func (d *Device) CrossEntropy(losses, dlogits, logits, targets device.Mem, rows, vocabulary int, scale float32) {
	device.CheckCrossEntropy(losses, dlogits, logits, targets, rows, vocabulary)
	C.avg_cross_entropy(d.c, floats(losses), floats(dlogits), floats(logits), integers(targets), size(rows), size(vocabulary),
		C.float(scale))
}

// AdamStep implements device.Device.
func (d *Device) AdamStep(p, g, m, v, delta device.Mem, a device.Adam) {
	same("AdamStep", p.Len(), p, g, m, v)
	if !delta.Absent() {
		same("AdamStep", p.Len(), delta)
	}
	coupled, keep, rate, root := a.Derived()
	C.avg_adam(d.c, floats(p), floats(g), floats(m), floats(v), floats(delta), size(p.Len()), C.struct_adam{
		beta1: C.float(a.Beta1), beta2: C.float(a.Beta2), epsilon: C.float(a.Epsilon), grad_scale: C.float(a.GradScale),
		coupled: C.float(coupled), keep: C.float(keep), rate: C.float(rate), root: C.float(root),
	})
}

// SGDStep implements device.Device.
func (d *Device) SGDStep(p, g, m, delta device.Mem, s device.SGD) {
	same("SGDStep", p.Len(), p, g)
	if s.Momentum == 0 {
		m = device.Mem{}
	} else {
		same("SGDStep", p.Len(), m)
	}
	if !delta.Absent() {
		same("SGDStep", p.Len(), delta)
	}
	C.avg_sgd(d.c, floats(p), floats(g), floats(m), floats(delta), size(p.Len()), C.struct_sgd{
		learning_rate: C.float(s.LearningRate), momentum: C.float(s.Momentum), weight_decay: C.float(s.WeightDecay),
		grad_scale: C.float(s.GradScale), nesterov: truth(s.Nesterov), first: truth(s.First),
	})
}

// chars is the address of m's elements as C has it, whatever they are.
func chars(m device.Mem) *C.char { return (*C.char)(m.Pointer()) }

// integers is the address of m's elements as C has it.
func integers(m device.Mem) *C.int32_t { return (*C.int32_t)(m.Pointer()) }

func truth(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
