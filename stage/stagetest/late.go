package stagetest

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
)

// Late is package ref as a graphics processor would be: its memory is not the host's, and a goroutine runs its queue as late as it may.
// Nothing runs before somebody waits for an event after it. Host memory of an upload is read then, and that of a download holds
// guard values until then, so whoever does not wait computes with other bits.
type Late struct {
	ref     *ref.Device
	memory  *lateMemory
	running sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond
	queue   []task // from number done on
	handed  uint64 // tasks
	wanted  uint64 // of them, by those who wait
	done    uint64
	failure error
	closed  bool
	events  [64]lateEvent
	next    int
	unused  map[reflect.Type][]device.Op // to copy operations to
}

// lateMemory is what devices share: the blocks of the addresses that Alloc gave out, which nobody can touch.
type lateMemory struct {
	mu      sync.Mutex
	devices int
	blocks  map[unsafe.Pointer]device.Mem
}

// task is an operation, bytes that move to device memory or from it, or a moment of another queue to wait for.
type task struct {
	op       device.Op
	event    lateEvent
	mem      device.Mem
	up, down []byte
}

type lateEvent struct {
	device *Late
	after  uint64 // tasks
}

var _ device.Queue = (*Late)(nil)

// NewLate starts a device's queue.
func NewLate() *Late { return newLate(&lateMemory{blocks: map[unsafe.Pointer]device.Mem{}}) }

// Beside is another queue over the same memory.
func (d *Late) Beside() *Late { return newLate(d.memory) }

// Shares implements device.Sharer.
func (d *Late) Shares(with device.Device) bool {
	other, ok := with.(*Late)
	return ok && other.memory == d.memory
}

func newLate(memory *lateMemory) *Late {
	d := &Late{ref: ref.New(), memory: memory, unused: map[reflect.Type][]device.Op{}}
	memory.mu.Lock()
	memory.devices++
	memory.mu.Unlock()
	d.changed.L = &d.mu
	for i := range d.events {
		d.events[i].device = d
	}
	d.running.Go(d.run)
	return d
}

// Has implements device.Device.
func (d *Late) Has(op device.Op) bool { return d.ref.Has(op) }

// run runs what somebody waits for.
func (d *Late) run() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		for d.done == d.wanted {
			if d.closed {
				return
			}
			d.changed.Wait()
		}
		t := d.queue[0]
		d.mu.Unlock()
		err := d.execute(t)
		d.mu.Lock()
		if d.failure == nil {
			d.failure = err
		}
		if d.done++; t.op != nil {
			kind := reflect.TypeOf(t.op)
			d.unused[kind] = append(d.unused[kind], t.op)
		}
		d.queue = append(d.queue[:0], d.queue[1:]...)
		d.changed.Broadcast()
	}
}

// execute runs one task. What panics on a device of the host's memory is a failure.
func (d *Late) execute(t task) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("late device: %v", r)
		}
	}()
	switch {
	case t.op != nil:
		d.ref.Do(t.op)
	case t.event.device != nil:
		return t.event.device.wait(t.event.after)
	case t.up != nil:
		d.ref.Upload(t.mem, t.up)
	default:
		d.ref.Download(t.down, t.mem)
	}
	return nil
}

func (d *Late) hand(t task) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue, d.handed = append(d.queue, t), d.handed+1
}

// wait returns when so many tasks have ended.
func (d *Late) wait(after uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waitLocked(after)
}

// waitAll returns when all tasks handed so far have ended.
func (d *Late) waitAll() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waitLocked(d.handed)
}

func (d *Late) waitLocked(after uint64) error {
	d.wanted = max(d.wanted, after)
	d.changed.Broadcast()
	for d.done < after {
		d.changed.Wait()
	}
	return d.failure
}

// Do implements device.Device.
func (d *Late) Do(op device.Op) {
	device.Check(op)
	own := d.clone(op)
	device.Operands(own, func(m *device.Mem) { *m = d.place(*m) })
	d.hand(task{op: own})
}

// clone copies an operation to one that has run, if there is one.
func (d *Late) clone(op device.Op) device.Op {
	kind := reflect.TypeOf(op)
	d.mu.Lock()
	defer d.mu.Unlock()
	unused := d.unused[kind]
	if len(unused) == 0 {
		return device.Clone(op)
	}
	own := unused[len(unused)-1]
	d.unused[kind] = unused[:len(unused)-1]
	reflect.ValueOf(own).Elem().Set(reflect.ValueOf(op).Elem())
	return own
}

// place is where a device's memory really lies.
func (d *Late) place(m device.Mem) device.Mem {
	if !m.Absent() {
		base, offset := m.Symbol()
		d.memory.mu.Lock()
		m.Place(d.memory.blocks[base], offset)
		d.memory.mu.Unlock()
	}
	return m
}

// Wait implements device.Event.
func (e *lateEvent) Wait() error {
	now := e.copy()
	return now.device.wait(now.after)
}

func (e *lateEvent) copy() lateEvent {
	e.device.mu.Lock()
	defer e.device.mu.Unlock()
	return *e
}

// Record implements device.Device.
func (d *Late) Record() device.Event {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := &d.events[d.next]
	d.next = (d.next + 1) % len(d.events)
	e.after = d.handed
	return e
}

// Synchronize implements device.Device.
func (d *Late) Synchronize() error {
	err := d.waitAll()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failure = nil
	return err
}

// Follow implements device.Queue. The event may be another by the time that the task runs, so its moment is kept.
func (d *Late) Follow(e device.Event) {
	d.hand(task{event: e.(*lateEvent).copy()}) //nolint:forcetypeassert // of a queue beside this one
}

// Upload implements device.Device.
func (d *Late) Upload(dst device.Mem, src []byte) {
	if len(src) != dst.Bytes() {
		panic(fmt.Sprintf("late device: Upload: %d bytes for %d %v", len(src), dst.Len(), dst.Type()))
	}
	if len(src) > 0 {
		d.hand(task{mem: d.place(dst), up: src})
	}
}

// Download implements device.Device.
func (d *Late) Download(dst []byte, src device.Mem) {
	if len(dst) != src.Bytes() {
		panic(fmt.Sprintf("late device: Download: %d bytes of %d %v", len(dst), src.Len(), src.Type()))
	}
	for i := range dst {
		dst[i] = guardBytes[i%len(guardBytes)]
	}
	d.hand(task{mem: d.place(src), down: dst})
}

// Name implements device.Device.
func (d *Late) Name() string { return "late (ref, behind a queue)" }

// Host implements device.Device.
func (d *Late) Host() bool { return false }

// Alloc implements device.Device.
func (d *Late) Alloc(t device.Type, n int) (device.Mem, error) {
	m, err := d.ref.Alloc(t, n)
	if err != nil {
		return m, err
	}
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(max(m.Bytes(), 1)), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return device.Mem{}, fmt.Errorf("late device: reserve %d bytes of address space: %w", m.Bytes(), err)
	}
	d.memory.mu.Lock()
	defer d.memory.mu.Unlock()
	d.memory.blocks[at] = m
	return device.NewMem(at, n, t), nil
}

// Free implements device.Device: it waits for whoever may use the memory.
func (d *Late) Free(m device.Mem) {
	if !m.Absent() {
		_ = d.waitAll() // a failure is kept for Synchronize
		d.memory.mu.Lock()
		defer d.memory.mu.Unlock()
		if err := d.memory.release(m.Pointer()); err != nil {
			panic(err)
		}
	}
}

// release gives an address back. The caller holds mu.
func (m *lateMemory) release(at unsafe.Pointer) error {
	bytes := uintptr(max(m.blocks[at].Bytes(), 1))
	delete(m.blocks, at)
	return unix.MunmapPtr(at, bytes)
}

// Close implements device.Device.
func (d *Late) Close() error {
	err := d.Synchronize()
	d.mu.Lock()
	d.closed = true
	d.changed.Broadcast()
	d.mu.Unlock()
	d.running.Wait()
	d.memory.mu.Lock()
	defer d.memory.mu.Unlock()
	if d.memory.devices--; d.memory.devices == 0 {
		for at := range d.memory.blocks {
			err = errors.Join(err, d.memory.release(at))
		}
	}
	return err
}
