package device

import "time"

// What some devices are beside a Device: Of finds it.

// Of is the first T among a device and those that it is a wrapper around, from the outside in; false: there is none.
func Of[T any](d Device) (T, bool) {
	found, ok := d.(T)
	if w, wraps := d.(interface{ Unwrap() Device }); wraps && !ok {
		return Of[T](w.Unwrap())
	}
	return found, ok
}

// innermost is a device without the wrappers around it.
func innermost(d Device) Device {
	if w, ok := d.(interface{ Unwrap() Device }); ok {
		return innermost(w.Unwrap())
	}
	return d
}

// Threaded is implemented by devices that care which OS thread calls them. The executor calls Attach once, from the
// goroutine that it has locked to its OS thread, before the first operation; the device may bind that thread to processors
// (threads that it starts later inherit the binding). The executor must then end without unlocking the goroutine, so that
// the bound thread ends with it. Operations give the same results without Attach.
type Threaded interface {
	Attach() error
}

// Sharer is implemented by devices that may share memory with others: queues of one graphics processor.
type Sharer interface {
	// Shares reports whether operations of this device may use memory of the other, and the other way round.
	Shares(with Device) bool
}

// Share reports whether operations of either device may use memory of the other, once an event after what wrote it has passed.
func Share(a, b Device) bool {
	a, b = innermost(a), innermost(b)
	s, ok := a.(Sharer)
	return a == b || ok && s.Shares(b)
}

// HostAllocator is implemented by devices that copy from and to host memory of theirs without the host's help: page-locked memory.
type HostAllocator interface {
	// AllocHost returns n bytes, aligned to 64; nil where no more can be had. Any goroutine may call it. Close frees them.
	AllocHost(n int) []byte
}

// HostAllocatorOf is AllocHost of a device; nil: it has no use for memory of its own.
func HostAllocatorOf(d Device) func(n int) []byte {
	if a, ok := Of[HostAllocator](d); ok {
		return a.AllocHost
	}
	return nil
}

// Planner is implemented by devices whose operations take memory of the device beside their operands.
type Planner interface {
	// Workspace is how many bytes operations take, run one after the other.
	Workspace(ops []Op) int
	// Prepare makes that memory, so that Do of these operations allocates nothing.
	Prepare(ops []Op) error
}

// PlannersOf are the planners of a device, one for each of its queues. None: operations take nothing of it.
func PlannersOf(d Device) (found []Planner) {
	if q, ok := Of[*Queues](d); ok {
		for _, one := range q.all {
			found = append(found, PlannersOf(one)...)
		}
	} else if p, ok := Of[Planner](d); ok {
		found = append(found, p)
	}
	return found
}

// Pass is a list of operations that runs again and again. From run to run its operands may move, and numbers change that Args gives.
type Pass struct {
	Ops []Op
	// Changing are those of Ops, in their order, whose numbers may change.
	Changing []Op
	// Places are the memory that the operands lie in. Each operand lies where it did in any run with the same.
	Places []Mem
	Fresh  bool // Args.Fresh, which changes what Ops do
}

// Replayer is implemented by devices that run a pass which they have seen at less cost than its operations one by one.
type Replayer interface {
	// Replay runs the operations of a pass as Do does one after the other. It keeps p, and never looks at Ops and Places later.
	Replay(p *Pass)
}

// Work says what the operations up to the next Record or Synchronize are for.
type Work struct {
	Kind WorkKind
	// Stage is the stage that works, 0-based.
	Stage int
	// Again says that a backward first recomputes its forward.
	Again bool
}

// WorkKind is a pass of a stage.
type WorkKind uint8

// The kinds of work.
const (
	ForwardWork WorkKind = iota
	BackwardWork
	BackwardInputWork  // the first half of a split backward
	BackwardWeightWork // the second
	UpdateWork         // the optimizer's step, or a prediction of one
)

// Emulator is implemented by devices whose operations take times that are dictated. A stage tells them which pass comes next, so that
// they can spend the configured time of that pass.
type Emulator interface {
	// Begin is called before the first operation of a pass, which ends with Record or Synchronize. Work between passes (averaging,
	// norms) is not announced.
	Begin(w Work)
	// KeepsValues reports whether the device computes. Else what is written to it is lost, and what is read is 0.
	KeepsValues() bool
	// Lag is by how much what was waited for ended later than was dictated, added up. What follows at once and is as late counts no more.
	// Any goroutine may call it.
	Lag() time.Duration
}

// Waiter is implemented by devices that wait, on the thread that drives them, for a time that is dictated.
type Waiter interface {
	// WhileWaiting sets what is called now and then while a forward or a backward waits for its time: work that runs beside it, and takes none of the device's time.
	WhileWaiting(f func())
}

// KeepsValues reports whether what is written to a device can be read again.
func KeepsValues(d Device) bool {
	e, emulates := Of[Emulator](d)
	return !emulates || e.KeepsValues()
}
