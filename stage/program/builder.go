package program

import (
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Builder takes down the operations of a stage's forward, and then of its backward, in the order in which they run.
type Builder struct {
	values   []value
	ids      map[unsafe.Pointer]int
	external map[int]device.Mem // what External made, by index
	entries  []entry
	backward bool
	unsplit  bool
}

// value is a tensor without an address.
type value struct {
	mem      device.Mem
	external int  // the index of the binding, or -1: the program has its memory
	into     bool // external: a pass writes it and reads nothing that was there
	fresh    bool // external: products make it; see device.Args.Fresh
	boundary bool // the gradient of a boundary between layers
	passing  bool // external: it is gone when the weight half of a backward runs
	again    bool // each pass that reads it makes it
}

// entry is an operation, the values of its operands, and the pass that it belongs to.
type entry struct {
	op       device.Op
	uses     []use
	backward bool
	unsplit  bool // the input half of a backward runs it, whoever needs its results
}

// use is an operand's value, and whether the operation writes it.
type use struct {
	id     int
	writes bool
}

// NewBuilder returns an empty builder.
func NewBuilder() *Builder {
	return &Builder{ids: map[unsafe.Pointer]int{}, external: map[int]device.Mem{}}
}

func (b *Builder) value(v value) device.Mem {
	symbol, _ := v.mem.Symbol()
	b.ids[symbol] = len(b.values)
	b.values = append(b.values, v)
	return v.mem
}

// New is a tensor of n elements that operations of the program make.
func (b *Builder) New(t device.Type, n int) device.Mem {
	return b.value(value{mem: device.NewSymbol(t, n), external: -1})
}

// Again is New for a tensor that one operation makes of bound tensors. Each pass that reads it runs that operation, so no micro-batch keeps it.
func (b *Builder) Again(t device.Type, n int) device.Mem {
	return b.value(value{mem: device.NewSymbol(t, n), external: -1, again: true})
}

// External is the tensor that is bound when the program runs, as the binding with this index.
func (b *Builder) External(index int, t device.Type, n int) device.Mem {
	if _, made := b.external[index]; !made {
		b.external[index] = b.value(value{mem: device.NewSymbol(t, n), external: index})
	}
	return b.external[index]
}

// Output is External for a tensor that the program sets.
func (b *Builder) Output(index int, t device.Type, n int) device.Mem {
	return b.value(value{mem: device.NewSymbol(t, n), external: index, into: true})
}

// Passing is External for a tensor that is not there any more when the weight half of a backward runs.
func (b *Builder) Passing(index int, t device.Type, n int) device.Mem {
	return b.value(value{mem: device.NewSymbol(t, n), external: index, passing: true})
}

// Gradient is External for the gradient of a parameter; fresh says that products make it, each all of it.
func (b *Builder) Gradient(index, n int, fresh bool) device.Mem {
	return b.value(value{mem: device.NewSymbol(device.F32, n), external: index, fresh: fresh})
}

// Boundary notes that m is the gradient of a boundary between layers: the input half of a backward computes it.
func (b *Builder) Boundary(m device.Mem) {
	if id, ok := b.id(m); ok {
		b.values[id].boundary = true
	}
}

// Backward begins the backward.
func (b *Builder) Backward() { b.backward = true }

// Unsplit says whether the operations that follow all belong to the input half of a backward: those that add to gradients too.
func (b *Builder) Unsplit(unsplit bool) { b.unsplit = unsplit }

// Do takes an operation down.
func (b *Builder) Do(op device.Op) {
	device.Check(op)
	e := b.entry(op, b.backward)
	e.unsplit = b.unsplit
	b.entries = append(b.entries, e)
}

// id is the value that m lies in; false when m is absent.
func (b *Builder) id(m device.Mem) (id int, ok bool) {
	if m.Absent() {
		return 0, false
	}
	symbol, _ := m.Symbol()
	id, ok = b.ids[symbol]
	if !ok {
		panic("program: an operand that the builder did not make")
	}
	return id, true
}

func (b *Builder) entry(op device.Op, backward bool) entry {
	e, results := entry{op: op, backward: backward}, device.Results(op)
	device.Operands(op, func(m *device.Mem) {
		results--
		if id, ok := b.id(*m); ok {
			e.uses = append(e.uses, use{id, results >= 0})
		}
	})
	return e
}

// touches reports whether the operation has an operand in a value, and whether it writes it.
func (e *entry) touches(value int) (touches, writes bool) {
	for _, u := range e.uses {
		if u.id == value {
			touches, writes = true, writes || u.writes
		}
	}
	return touches, writes
}
