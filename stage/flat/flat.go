// Package flat defines the flat vector: a run of float32 that lies where its stage computes. Averaging, checkpoints and
// replication see a stage only as flat vectors (parameters, gradients, optimizer state), so none of them knows of
// layers, shapes or devices.
//
// Host is the in-memory implementation; package stage/flat/flattest is the conformance suite that every other one passes.
package flat

// Vector is a run of float32 of fixed length.
//
// The arithmetic methods belong to the goroutine that owns the vector's device (its executor); Read and Write may be
// called only there as well. Operands must have the receiver's length and be of the receiver's kind; anything else is a
// broken invariant and panics. Every method is exact to the bit: element i of the result depends on element i of the
// operands alone, and products are rounded to float32 before they are added. The same inputs give the same bits on every
// host of one kind of device.
type Vector interface {
	// Len is the number of elements.
	Len() int
	// Slice is the elements [from, to) as a vector of their own: what is written to one is read from the other.
	Slice(from, to int) Vector
	// Zero sets every element to 0.
	Zero()
	// Copy sets v = x.
	Copy(x Vector)
	// Scale sets v = a v.
	Scale(a float32)
	// Axpy sets v = v + a x.
	Axpy(a float32, x Vector)
	// Lerp sets v = v + a (x - v): a = 0 keeps v, a = 1 moves it onto x. a = 1 gives x exactly.
	Lerp(a float32, x Vector)
	// Mul sets v = v * x, element by element.
	Mul(x Vector)
	// Read copies elements [offset, offset+len(dst)) to host memory.
	Read(dst []float32, offset int)
	// Write copies src from host memory to elements [offset, offset+len(src)).
	Write(src []float32, offset int)
}

// Range is the elements [From, To) of a vector.
type Range struct{ From, To int }
