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

// Zero implements Vector.
func (v Host) Zero() { clear(v) }

// Copy implements Vector.
func (v Host) Copy(x Vector) { copy(v, v.operand("Copy", x)) }

// Scale implements Vector.
func (v Host) Scale(a float32) {
	for i := range v {
		v[i] *= a
	}
}

// Axpy implements Vector.
func (v Host) Axpy(a float32, x Vector) {
	xs := v.operand("Axpy", x)[:len(v)]
	for i := range v {
		v[i] += float32(a * xs[i])
	}
}

// Lerp implements Vector.
func (v Host) Lerp(a float32, x Vector) {
	if a == 1 {
		v.Copy(x)
		return
	}
	xs := v.operand("Lerp", x)[:len(v)]
	for i := range v {
		v[i] += float32(a * (xs[i] - v[i]))
	}
}

// Mul implements Vector.
func (v Host) Mul(x Vector) {
	xs := v.operand("Mul", x)[:len(v)]
	for i := range v {
		v[i] *= xs[i]
	}
}

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
