package flat

import "fmt"

// Host is a vector in Go's memory.
type Host []float32

var _ Vector = Host(nil)

// NewHost returns a zeroed vector of n elements.
func NewHost(n int) Host { return make(Host, n) }

// operand returns x as a host vector of v's length.
func (v Host) operand(op string, x Vector) Host {
	other, ok := x.(Host)
	if !ok {
		panic(fmt.Sprintf("flat: %s: operand is a %T, expected a flat.Host", op, x))
	}
	if len(other) != len(v) {
		panic(fmt.Sprintf("flat: %s: operand has %d elements, expected %d", op, len(other), len(v)))
	}
	return other
}

// Len implements Vector.
func (v Host) Len() int { return len(v) }

// Slice implements Vector.
func (v Host) Slice(from, to int) Vector {
	CheckRange("Slice", len(v), from, to-from)
	return v[from:to:to]
}

// Zero implements Vector.
func (v Host) Zero() { clear(v) }

// Copy implements Vector.
func (v Host) Copy(x Vector) { copy(v, v.operand("Copy", x)) }

// Scale implements Vector.
func (v Host) Scale(a float32) { Scale(v, a) }

// Axpy implements Vector.
func (v Host) Axpy(a float32, x Vector) { Axpy(v, a, v.operand("Axpy", x)) }

// Lerp implements Vector.
func (v Host) Lerp(a float32, x Vector) { Lerp(v, a, v.operand("Lerp", x)) }

// Mul implements Vector.
func (v Host) Mul(x Vector) { Mul(v, v.operand("Mul", x)) }

// Read implements Vector.
func (v Host) Read(dst []float32, offset int) {
	CheckRange("Read", len(v), offset, len(dst))
	copy(dst, v[offset:])
}

// Write implements Vector.
func (v Host) Write(src []float32, offset int) {
	CheckRange("Write", len(v), offset, len(src))
	copy(v[offset:], src)
}

// CheckRange panics unless elements [offset, offset+n) lie within a vector of length elements.
func CheckRange(op string, length, offset, n int) {
	if offset < 0 || offset > length || n > length-offset {
		panic(fmt.Sprintf("flat: %s: elements [%d, %d) of a vector of %d", op, offset, offset+n, length))
	}
}

// Scale is Vector.Scale of elements in Go's memory, and Axpy, Lerp and Mul are as well. x has as many elements as v.
func Scale(v []float32, a float32) {
	for i := range v {
		v[i] *= a
	}
}

// Axpy is Vector.Axpy.
func Axpy(v []float32, a float32, x []float32) {
	x = x[:len(v)]
	for i := range v {
		v[i] += float32(a * x[i])
	}
}

// Lerp is Vector.Lerp.
func Lerp(v []float32, a float32, x []float32) {
	if x = x[:len(v)]; a == 1 {
		copy(v, x)
		return
	}
	for i := range v {
		v[i] += float32(a * (x[i] - v[i]))
	}
}

// Mul is Vector.Mul.
func Mul(v, x []float32) {
	x = x[:len(v)]
	for i := range v {
		v[i] *= x[i]
	}
}
