//go:build onednn && cgo && linux && amd64

package cpu

/*
#include "device.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
)

// elements is m as C has operands of either type.
func elements(m device.Mem) C.struct_elements {
	return C.struct_elements{data: m.Pointer(), bf16: brain(m)}
}

// brain says in C's terms whether m holds bfloat16 numbers.
func brain(m device.Mem) C.int { return truth(m.Type() == device.BF16) }

// Has implements device.Device: it has all.
func (d *Device) Has(device.Op) bool { return true }

// Do implements device.Device.
func (d *Device) Do(op device.Op) {
	device.Check(op)
	device.CheckIDs(op)
	switch o := op.(type) {
	case *device.Zero:
		C.avg_zero(d.c, chars(o.X), size(o.X.Bytes()))
	case *device.Copy:
		d.copy(o.Y, o.X)
	case *device.Scale:
		C.avg_scale(d.c, floats(o.X), C.float(o.A), size(o.X.Len()))
	case *device.Axpy:
		C.avg_axpy(d.c, floats(o.Y), C.float(o.A), floats(o.X), size(o.Y.Len()))
	case *device.Lerp:
		if o.A == 1 {
			d.copy(o.Y, o.X)
		} else {
			C.avg_lerp(d.c, floats(o.Y), C.float(o.A), floats(o.X), size(o.Y.Len()))
		}
	case *device.Mul:
		C.avg_mul(d.c, floats(o.Y), floats(o.X), size(o.Y.Len()))
	case *device.Add:
		C.avg_add(d.c, elements(o.Out), elements(o.A), elements(o.B), size(o.Out.Len()))
	case *device.MatMul:
		d.matMul(o)
	case *device.Unary:
		C.avg_unary(d.c, C.int(o.Function), elements(o.Y), elements(o.X), size(o.Y.Len()))
	case *device.UnaryBackward:
		C.avg_unary_backward(d.c, C.int(o.Function), elements(o.DX), elements(o.DY), elements(o.X), size(o.DX.Len()))
	case *device.Dropout:
		d.dropout(o)
	default:
		if !d.doRows(op) && !d.doStep(op) && !d.doTransformer(op) && !d.doVision(op) && !d.doRecurrent(op) {
			panic(fmt.Sprintf("cpu device: no operation %T", op))
		}
	}
}

// doRows runs the operations on rows of a matrix. It reports whether op is one.
func (d *Device) doRows(op device.Op) bool {
	switch o := op.(type) {
	case *device.SumRows:
		C.avg_sum_rows(d.c, floats(o.Sum), elements(o.X), size(o.Rows()), size(o.Sum.Len()))
	case *device.Norm:
		rows, columns := o.Size()
		C.avg_norm(d.c, elements(o.Y), floats(o.Mean), floats(o.Rstd), floats(o.X), floats(o.Weight), floats(o.Bias), size(rows), size(columns),
			C.float(o.Epsilon))
	case *device.NormBackward:
		rows, columns := o.Size()
		C.avg_norm_backward(d.c, floats(o.DX), elements(o.DY), floats(o.X), floats(o.Mean), floats(o.Rstd), floats(o.Weight), floats(o.Plus),
			size(rows), size(columns))
	case *device.NormBackwardWeight:
		rows, columns := o.Size()
		C.avg_norm_backward_weight(d.c, floats(o.DWeight), floats(o.DBias), elements(o.DY), floats(o.X), floats(o.Mean), floats(o.Rstd), size(rows),
			size(columns))
	case *device.CrossEntropy:
		rows, vocabulary := o.Size()
		C.avg_cross_entropy(d.c, floats(o.Losses), floats(o.DLogits), floats(o.Logits), integers(o.Targets), size(rows), size(vocabulary),
			C.float(o.Scale), C.float(o.Smoothing))
	default:
		return false
	}
	return true
}

// doStep runs the operations of optimizers. It reports whether op is one.
func (d *Device) doStep(op device.Op) bool {
	switch o := op.(type) {
	case *device.SquaredNorm:
		C.avg_squared_norm(d.c, (*C.double)(o.Sum.Pointer()), floats(o.X), size(o.X.Len()))
	case *device.AdamStep:
		coupled, keep, rate, root := o.Derived()
		C.avg_adam(d.c, floats(o.P), floats(o.M), floats(o.V), stepped(o.G, o.Delta, o.Copy16, o.Sum), size(o.P.Len()), C.struct_adam{
			beta1: C.float(o.Beta1), beta2: C.float(o.Beta2), epsilon: C.float(o.Epsilon), grad_scale: C.float(o.GradScale),
			coupled: C.float(coupled), keep: C.float(keep), rate: C.float(rate), root: C.float(root),
		})
	case *device.SGDStep:
		m := o.M
		if o.Momentum == 0 {
			m = device.Mem{}
		}
		C.avg_sgd(d.c, floats(o.P), floats(m), stepped(o.G, o.Delta, o.Copy16, o.Sum), size(o.P.Len()), C.struct_sgd{
			learning_rate: C.float(o.LearningRate), momentum: C.float(o.Momentum), weight_decay: C.float(o.WeightDecay),
			grad_scale: C.float(o.GradScale), nesterov: truth(o.Nesterov), first: truth(o.First),
		})
	case *device.ASGDStep:
		C.avg_asgd(d.c, floats(o.P), floats(o.S), stepped(o.G, o.Delta, device.Mem{}, o.Sum), size(o.P.Len()), C.struct_asgd{
			learning_rate: C.float(o.LearningRate), weight_decay: C.float(o.WeightDecay), grad_scale: C.float(o.GradScale),
			share: C.float(o.Share),
		})
	default:
		return false
	}
	return true
}

// doTransformer runs the operations of transformers. It reports whether op is one.
func (d *Device) doTransformer(op device.Op) bool {
	switch o := op.(type) {
	case *device.Embed:
		positions := o.Positions
		if !positions.Absent() {
			positions = positions.Slice(o.Past*o.Width(), o.T*o.Width())
		}
		C.avg_embed(d.c, floats(o.Out), floats(o.Tokens), floats(positions), integers(o.IDs), size(o.IDs.Len()), size(max(o.T, 1)), size(o.Width()),
			truth(o.Add))
	case *device.EmbedBackward:
		C.avg_embed_backward(d.c, floats(o.DTokens), floats(o.DPositions), floats(o.DOut), integers(o.IDs), size(o.IDs.Len()), size(max(o.T, 1)),
			size(o.Width()))
	case *device.Attention:
		d.ended(o, C.avg_attention(d.c, attention(o.AttentionShape, o.Out, o.Saved, o.Q, o.K, o.V)))
	case *device.AttentionBackward:
		x := attention(o.AttentionShape, o.Out, o.Saved, o.Q, o.K, o.V)
		x.dq, x.dk, x.dv, x.dout = chars(o.DQ), chars(o.DK), chars(o.DV), chars(o.DOut)
		d.ended(o, C.avg_attention_backward(d.c, x))
	case *device.CacheAppend:
		C.avg_cache_append(d.c, chars(o.Cache), chars(o.X), size(o.B), size(o.T), size(o.KV), size(o.S), size(o.Stride), size(o.Capacity), size(o.Past),
			size(o.X.Type().Bytes()))
	case *device.CachedAttention:
		d.cachedAttention(o)
	case *device.Rotate:
		table := d.rotations.Table(o.Rotation)
		shape := C.struct_rotation{t: size(o.T), heads: size(o.Heads), s: size(o.S), inverse: truth(o.Inverse)}
		C.avg_rotate(d.c, elements(o.Y), elements(o.X), shape, (*C.float)(unsafe.Pointer(unsafe.SliceData(table))), size(o.B*o.T))
	case *device.SwiGLU:
		C.avg_swiglu(d.c, elements(o.Y), elements(o.Gate), elements(o.Up), size(o.Y.Len()))
	case *device.SwiGLUBackward:
		C.avg_swiglu_backward(d.c, elements(o.DGate), elements(o.DUp), elements(o.DY), elements(o.Gate), elements(o.Up), size(o.DY.Len()))
	default:
		return false
	}
	return true
}

func (d *Device) copy(y, x device.Mem) {
	if y.Type() == x.Type() {
		C.avg_move(d.c, chars(y), chars(x), size(y.Bytes()))
	} else {
		C.avg_convert(d.c, elements(y), elements(x), size(x.Len()))
	}
}

func (d *Device) dropout(o *device.Dropout) {
	threshold, scale := o.Derived()
	mask := C.struct_dropout{key: C.uint64_t(o.Key), threshold: C.uint32_t(threshold), scale: C.float(scale)}
	if !o.IDs.Absent() {
		C.avg_drop_rows(d.c, floats(o.Y), floats(o.X), integers(o.IDs), size(o.Rows), size(o.Columns), mask)
		return
	}
	C.avg_dropout(d.c, elements(o.Y), elements(o.X), size(o.Rows/o.Share), size(o.Share), size(o.Columns), C.uint64_t(o.First), mask)
}

// attention is the shape of a and its operands as C has them; the backward's are absent in a forward.
func attention(a device.AttentionShape, out, saved, q, k, v device.Mem) C.struct_attention {
	a = a.WithDefaults()
	threshold, scale := a.Dropout.Derived()
	return C.struct_attention{
		out: chars(out), q: chars(q), k: chars(k), v: chars(v), lse: floats(saved), mask: integers(a.Mask),
		b: size(a.B), t: size(a.T), h: size(a.H), kv: size(a.KV), s: size(a.S),
		q_stride: size(a.QStride), kv_stride: size(a.KVStride), bf16: brain(q), bidirectional: truth(a.Bidirectional),
		window:  size(a.Window),
		dropout: C.struct_dropout{key: C.uint64_t(a.Dropout.Key), threshold: C.uint32_t(threshold), scale: C.float(scale)},
		first:   C.uint64_t(a.Dropout.First),
	}
}

// stepped are the operands that every step has, as C has them.
func stepped(g, delta, copy16, sum device.Mem) C.struct_stepped {
	return C.struct_stepped{g: floats(g), delta: floats(delta), copy16: copy16.Pointer(), total: (*C.double)(sum.Pointer())}
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
