// Package device defines what a stage computes on: memory and operations. Layers are written once against
// Device; package ref is the plain Go form of every operation and the oracle that every other device is tested against
// (package stage/stagetest).
//
// Shapes in comments: B samples, T positions, D width (n_embd), H heads, S = D/H head width, V vocabulary, R rows (B*T),
// C columns. All matrices are row-major and contiguous.
package device

import (
	"fmt"
	"unsafe"
)

// Type is the element type of a Mem.
type Type uint8

// Element types.
const (
	F32 Type = iota
	I32
	BF16
	F64 // of sums that end on the host
)

var types = [...]struct {
	name  string
	bytes int
}{F32: {"f32", 4}, I32: {"i32", 4}, BF16: {"bf16", 2}, F64: {"f64", 8}}

// Bytes is the size of one element.
func (t Type) Bytes() int { return types[t].bytes }

// String names the type as job files and messages do.
func (t Type) String() string { return types[t].name }

// Floating is the type of numbers that a job file names: f32, which "" stands for, or bf16.
func Floating(name string) Type {
	if name == BF16.String() {
		return BF16
	}
	return F32
}

// Mem is a run of elements in the memory of one device. It is a small value: slicing allocates nothing. The zero Mem is
// "absent" where an operation documents an operand as optional.
type Mem struct {
	base   unsafe.Pointer // of an allocation; on a device whose memory is the host's, a host address; or a symbol
	offset int            // bytes from there to the first element
	n      int            // elements
	typ    Type
}

// NewMem wraps n elements at ptr. Devices call it from Alloc; host devices also from views of boundary buffers.
func NewMem(ptr unsafe.Pointer, n int, typ Type) Mem { return Mem{base: ptr, n: n, typ: typ} }

// symbol stands for memory that has no address yet. Each is an allocation of its own, so that its address names it.
type symbol struct{ _ [8]byte }

// NewSymbol is memory without an address: what operations are written with before they are placed. Place gives it one.
func NewSymbol(typ Type, n int) Mem { return NewMem(unsafe.Pointer(new(symbol)), n, typ) }

// Symbol is the symbol, or the allocation, that m lies in, and how many bytes from its start.
func (m Mem) Symbol() (symbol unsafe.Pointer, offset int) { return m.base, m.offset }

// Place makes m lie at an offset in bytes from the first element of base. It is absent where base is.
func (m *Mem) Place(base Mem, offset int) {
	m.base, m.offset = base.base, base.offset+offset
	if base.base == nil {
		m.offset = 0
	}
}

// Len is the number of elements.
func (m Mem) Len() int { return m.n }

// Type is the element type.
func (m Mem) Type() Type { return m.typ }

// Bytes is the size in bytes; 0 when m is absent.
func (m Mem) Bytes() int {
	if m.base == nil {
		return 0
	}
	return m.n * m.typ.Bytes()
}

// Absent reports whether m is the zero Mem.
func (m Mem) Absent() bool { return m.base == nil }

// Pointer is the address of the first element.
func (m Mem) Pointer() unsafe.Pointer { return unsafe.Add(m.base, m.offset) }

// Slice is elements [from, from+n). It panics when they do not lie within m.
func (m Mem) Slice(from, n int) Mem {
	if from < 0 || n < 0 || from+n > m.n {
		panic("device: slice out of range")
	}
	return Mem{base: m.base, offset: m.offset + from*m.typ.Bytes(), n: n, typ: m.typ}
}

// As views the same memory as n elements of type t. It panics when they do not fit.
func (m Mem) As(t Type, n int) Mem {
	if n < 0 || n*t.Bytes() > m.Bytes() {
		panic("device: view beyond the memory")
	}
	return Mem{base: m.base, offset: m.offset, n: n, typ: t}
}

// F32 views the elements as host memory. Only for devices whose memory is the host's (Device.Host() is true).
func (m Mem) F32() []float32 { return view[float32](m, F32) }

// I32 views the elements as host memory, as F32 does.
func (m Mem) I32() []int32 { return view[int32](m, I32) }

// F64 views the elements as host memory, as F32 does.
func (m Mem) F64() []float64 { return view[float64](m, F64) }

// BF16 views the elements as host memory, as F32 does.
func (m Mem) BF16() []uint16 { return view[uint16](m, BF16) }

func view[E any](m Mem, t Type) []E {
	if m.typ != t {
		panic(fmt.Sprintf("device: %v view of %v", t, m.typ))
	}
	return unsafe.Slice((*E)(m.Pointer()), m.n)
}

// Event is a moment in the queue of a device: all that was handed to the device before it has ended. A nil Event is one that has passed.
type Event interface {
	// Wait returns when the event has passed, with the first failure of the device since its last Synchronize, which keeps it. Any
	// goroutine may call it, beside the device's.
	Wait() error
}

// Wait waits for an event, which may be nil.
func Wait(e Event) error {
	if e == nil {
		return nil
	}
	return e.Wait()
}

// Device computes. Its methods are called from one goroutine that stays on one OS thread (the device's executor), never concurrently.
// A device may have a queue: Do, Upload and Download then return before they have ended, and run one after the other, in the order
// in which they were called. On others, Record returns nil.
type Device interface {
	// Do runs an operation, one that the device has. It keeps op no longer than until it returns.
	Do(op Op)
	// Has reports whether the device has an operation on operands of these types. It looks at nothing that they hold.
	Has(op Op) bool
	// Name says what the device is, for people: "cpu (oneDNN 2.6.3, avx512_core_bf16, 1 thread)".
	Name() string
	// Host reports whether the device's memory is the host's, so that Mem.F32 and Wrap work.
	Host() bool
	// Alloc returns n zeroed elements, aligned to 64 bytes. The error names the bytes asked for and available.
	Alloc(t Type, n int) (Mem, error)
	// Free returns memory to the system: what Alloc returned, or an absent Mem, for which it does nothing. Slices of it must
	// not be used afterwards.
	Free(Mem)
	// Upload copies host bytes to dst; len(src) == dst.Bytes(). src must stay as it is until an event after it has passed.
	Upload(dst Mem, src []byte)
	// Download copies src to host bytes; len(dst) == src.Bytes(). They are there when an event after it has passed.
	Download(dst []byte, src Mem)
	// Record returns an event after all calls before. Of the events of a device, those before the last 64 may pass late.
	Record() Event
	// Synchronize waits for all operations and returns the first failure since the last call.
	Synchronize() error
	// Close frees everything. The device must not be used afterwards; a second Close does nothing.
	Close() error
}
