package device

import (
	"reflect"
	"sync"
	"unsafe"
)

// Op is one operation: a pointer to a struct of this package that holds the operands, results first, and what gives them their shape.
// A layer states an operation once; devices run it, price it or record it. Results are set unless the operation says that it adds.
//
// Tolerances against package ref, relative to the largest magnitude of the result unless stated: element-wise and copies exact
// unless stated; reductions 1e-5; products and attention 1e-5 times sqrt(K).
type Op interface {
	check(c checks) // see Check
}

// offsets are where the operands lie in the struct of each kind of operation.
var offsets sync.Map // reflect.Type -> []uintptr

func offsetsOf(t reflect.Type) []uintptr {
	if known, ok := offsets.Load(t); ok {
		return known.([]uintptr) //nolint:errcheck // nothing else is stored
	}
	var found []uintptr
	for f := range t.Fields() {
		switch {
		case f.Type == reflect.TypeFor[Mem]():
			found = append(found, f.Offset)
		case f.Type.Kind() == reflect.Struct:
			for _, inner := range offsetsOf(f.Type) {
				found = append(found, f.Offset+inner)
			}
		}
	}
	offsets.Store(t, found)
	return found
}

// Operands calls visit with each operand of op, absent ones too, in the order of the fields.
func Operands(op Op, visit func(*Mem)) {
	switch o := op.(type) { // of which each has its own number; no interface, so that visit stays on the stack
	case *ModulesForward:
		o.operands(visit)
		return
	case *ModulesBackward:
		o.operands(visit)
		return
	}
	v := reflect.ValueOf(op)
	for _, at := range offsetsOf(v.Type().Elem()) {
		visit((*Mem)(unsafe.Add(v.UnsafePointer(), at)))
	}
}

// Results is how many of the first operands of op it writes. Some of them it reads too: those that it adds to, or changes in place.
func Results(op Op) int {
	switch o := op.(type) {
	case *ModulesForward:
		return o.results()
	case *ModulesBackward:
		return o.results()
	case *SwiGLUBackward, *NormBackwardWeight, *EmbedBackward, *Attention, *CrossEntropy, *GroupMoments, *LSTMBackward, *WeightNormBackward:
		return 2
	case *Norm, *AttentionBackward, *GroupNormBackward:
		return 3
	case *LSTM, *AdditiveAttentionBackward, *ASGDStep:
		return 4
	case *SGDStep:
		return 5
	case *AdamStep:
		return 6
	}
	return 1
}

// InPlace calls visit with each result of op and an operand whose memory it may take.
func InPlace(op Op, visit func(result, operand *Mem)) {
	switch o := op.(type) {
	case *Copy:
		if o.Y.typ == o.X.typ {
			visit(&o.Y, &o.X)
		}
	case *Add:
		visit(&o.Out, &o.A)
		visit(&o.Out, &o.B)
	case *Unary:
		visit(&o.Y, &o.X)
	case *UnaryBackward:
		visit(&o.DX, &o.DY)
	case *SwiGLUBackward:
		visit(&o.DGate, &o.DY)
	case *NormBackward:
		if o.DY != o.Plus {
			visit(&o.DX, &o.DY)
		}
	case *Dropout:
		visit(&o.Y, &o.X)
	case *Rotate:
		visit(&o.Y, &o.X)
	case *CrossEntropy:
		visit(&o.DLogits, &o.Logits)
	}
}

// Clone is a copy of op: the same operands and attributes.
func Clone(op Op) Op {
	switch o := op.(type) {
	case *ModulesForward:
		return o.clone()
	case *ModulesBackward:
		return o.clone()
	}
	v := reflect.New(reflect.TypeOf(op).Elem())
	v.Elem().Set(reflect.ValueOf(op).Elem())
	return v.Interface().(Op) //nolint:errcheck // the same type
}

// Cost is what an operation takes: floating-point operations where arithmetic bounds it, else 0 and the bytes that move, every operand
// counted once.
func Cost(op Op) (flops float64, bytes int) {
	switch o := op.(type) {
	case *MatMul:
		if o.M == 1 && !o.Accumulate { // every element of B counts once
			return 0, o.C.Bytes() + o.A.Bytes() + o.B.Bytes()
		}
		return 2 * float64(o.M) * float64(o.N) * float64(o.K), 0
	case *CachedAttention:
		if o.T == 1 {
			return 0, o.bytes()
		}
		return o.flops(), 0
	case *CacheAppend:
		return 0, 2 * o.B * o.T * o.KV * o.S * o.X.typ.Bytes()
	case *Embed:
		return 0, lookup(o.Out, o.Positions, o.IDs, o.Add)
	case *EmbedBackward:
		return 0, lookup(o.DOut, o.DPositions, o.IDs, false)
	case *CopyColumns:
		return 0, 2 * o.Rows * o.Columns.Columns * o.Y.typ.Bytes()
	case interface{ flops() float64 }:
		return o.flops(), 0
	}
	Operands(op, func(m *Mem) { bytes += m.Bytes() })
	return 0, bytes
}

// lookup is the bytes of looking rows up: of the tables only those rows move.
func lookup(rows, positions, ids Mem, add bool) int {
	times := 2
	if add || !positions.Absent() {
		times = 3
	}
	return times*rows.Bytes() + ids.Bytes()
}
