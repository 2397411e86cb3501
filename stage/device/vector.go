package device

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// vector is a flat.Vector in a device's memory.
type vector struct {
	dev    Device
	mem    Mem
	writes *uint64 // of the whole vector that this is a slice of
	// The last operation of each kind, kept so that running one allocates nothing.
	zero  Zero
	copy  Copy
	scale Scale
	axpy  Axpy
	lerp  Lerp
	mul   Mul
}

// NewVector returns the float32 elements of mem, memory of dev, as a flat vector. It keeps no other copy: the vector and
// mem see each other's changes.
func NewVector(dev Device, mem Mem) flat.Vector {
	if mem.typ != F32 || mem.Absent() {
		panic(fmt.Sprintf("device: NewVector: mem has %d %v, expected f32", mem.n, mem.typ))
	}
	return &vector{dev: dev, mem: mem, writes: new(uint64)}
}

// VectorMem returns the memory of a vector that NewVector made on dev; false for any other.
func VectorMem(dev Device, v flat.Vector) (Mem, bool) {
	own, ok := v.(*vector)
	if !ok || own.dev != dev {
		return Mem{}, false
	}
	return own.mem, true
}

// Writes is how often the elements of a vector that NewVector made have been written through it, or through a slice of it.
func Writes(v flat.Vector) uint64 {
	own, ok := v.(*vector)
	if !ok {
		panic(fmt.Sprintf("device: Writes: a %T was given, expected a vector that NewVector made", v))
	}
	return *own.writes
}

// operand returns the memory of x, a vector of v's device and length.
func (v *vector) operand(op string, x flat.Vector) Mem {
	other, ok := x.(*vector)
	if !ok || other.dev != v.dev {
		panic(fmt.Sprintf("device: %s: operand is a %T of another device, expected a vector of %s", op, x, v.dev.Name()))
	}
	if other.mem.n != v.mem.n {
		panic(fmt.Sprintf("device: %s: operand has %d elements, expected %d", op, other.mem.n, v.mem.n))
	}
	return other.mem
}

// written is the memory, for an operation that writes to it.
func (v *vector) written() Mem {
	*v.writes++
	return v.mem
}

func (v *vector) Len() int { return v.mem.n }

func (v *vector) Slice(from, to int) flat.Vector {
	flat.CheckRange("Slice", v.mem.n, from, to-from)
	return &vector{dev: v.dev, mem: v.mem.Slice(from, to-from), writes: v.writes}
}

// do keeps an operation and runs it.
func do[T any, P interface {
	*T
	Op
}](v *vector, kept P, op T) {
	*kept = op
	v.dev.Do(kept)
}

func (v *vector) Zero()              { do(v, &v.zero, Zero{v.written()}) }
func (v *vector) Copy(x flat.Vector) { do(v, &v.copy, Copy{v.written(), v.operand("Copy", x)}) }
func (v *vector) Scale(a float32)    { do(v, &v.scale, Scale{X: v.written(), A: a}) }
func (v *vector) Mul(x flat.Vector)  { do(v, &v.mul, Mul{v.written(), v.operand("Mul", x)}) }

func (v *vector) Axpy(a float32, x flat.Vector) {
	do(v, &v.axpy, Axpy{Y: v.written(), A: a, X: v.operand("Axpy", x)})
}

func (v *vector) Lerp(a float32, x flat.Vector) {
	do(v, &v.lerp, Lerp{v.written(), a, v.operand("Lerp", x)})
}

func (v *vector) Read(dst []float32, offset int) {
	flat.CheckRange("Read", v.mem.n, offset, len(dst))
	_ = Read(v.dev, FloatBytes(dst), v.mem.Slice(offset, len(dst))) // what failed is kept for Synchronize
}

func (v *vector) Write(src []float32, offset int) {
	flat.CheckRange("Write", v.mem.n, offset, len(src))
	_ = Write(v.dev, v.written().Slice(offset, len(src)), FloatBytes(src)) // as of Read
}
