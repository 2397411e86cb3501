package stage

import (
	"fmt"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// Vector is the flat.Vector of a computed stage: float32 in its device's memory.
type Vector struct {
	dev device.Device
	mem device.Mem
}

var _ flat.Vector = (*Vector)(nil)

// NewVector wraps device memory as a flat vector.
func NewVector(d device.Device, m device.Mem) *Vector { return &Vector{dev: d, mem: m} }

// operand is x as memory of v's device and length; anything else is a broken invariant.
func (v *Vector) operand(x flat.Vector) device.Mem {
	o, ok := x.(*Vector)
	if !ok || o.dev != v.dev {
		panic(fmt.Sprintf("stage: vector operand %T lies on another device", x))
	}
	if o.mem.Len() != v.mem.Len() {
		panic(fmt.Sprintf("stage: vector operand has %d elements, want %d", o.mem.Len(), v.mem.Len()))
	}
	return o.mem
}

// Len implements flat.Vector.
func (v *Vector) Len() int { return v.mem.Len() }

// Mem is the memory itself, for operations of the device.
func (v *Vector) Mem() device.Mem { return v.mem }

// Zero implements flat.Vector.
func (v *Vector) Zero() { v.dev.Zero(v.mem) }

// Copy implements flat.Vector.
func (v *Vector) Copy(x flat.Vector) { v.dev.Copy(v.mem, v.operand(x)) }

// Scale implements flat.Vector.
func (v *Vector) Scale(a float32) { v.dev.Scale(v.mem, a) }

// Axpy implements flat.Vector.
func (v *Vector) Axpy(a float32, x flat.Vector) { v.dev.Axpy(v.mem, a, v.operand(x)) }

// Lerp implements flat.Vector.
func (v *Vector) Lerp(a float32, x flat.Vector) { v.dev.Lerp(v.mem, a, v.operand(x)) }

// Mul implements flat.Vector.
func (v *Vector) Mul(x flat.Vector) { v.dev.Mul(v.mem, v.operand(x)) }

// Dot implements flat.Vector.
func (v *Vector) Dot(x flat.Vector) float64 { return v.dev.Dot(v.mem, v.operand(x)) }

// Read implements flat.Vector.
func (v *Vector) Read(dst []float32, offset int) {
	v.dev.Download(bytesOf(dst), v.mem.Slice(offset, len(dst)))
}

// Write implements flat.Vector.
func (v *Vector) Write(src []float32, offset int) {
	v.dev.Upload(v.mem.Slice(offset, len(src)), bytesOf(src))
}

// bytesOf views float32 as bytes in native order.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
