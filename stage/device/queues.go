package device

import (
	"errors"
	"unsafe"
)

// Queue is a device that can wait for others which share memory with it.
type Queue interface {
	Device
	Sharer
	// Follow has what is handed over from now on run after an event of another queue has passed.
	Follow(Event)
}

// Queues is a device of several queues over one memory, as streams of a graphics processor: what one is given runs beside what others are given.
// Use names the queue of the calls that follow. Queue 0 comes before and after all others: what it is given runs when all that was
// given to the others has ended, and what they are given afterwards runs when that has.
type Queues struct {
	all      []Queue
	current  int
	followed []bool                 // by queue: it has been told to wait for all that queue 0 was given
	owner    map[unsafe.Pointer]int // of each allocation: the queue that made it
}

var _ Device = (*Queues)(nil)

// NewQueues joins queues that share memory. It closes them with itself.
func NewQueues(all []Queue) *Queues {
	return &Queues{all: all, followed: make([]bool, len(all)), owner: map[unsafe.Pointer]int{}}
}

// QueuesFor is how many queues serve so many pipelines: one each, behind queue 0. A pipeline that is alone needs no other.
func QueuesFor(pipelines int) int {
	if pipelines == 1 {
		return 1
	}
	return pipelines + 1
}

// Use turns to a queue.
func (q *Queues) Use(queue int) {
	switch {
	case queue == q.current:
		return
	case queue == 0:
		for i, other := range q.all[1:] {
			q.all[0].Follow(other.Record())
			q.followed[i+1] = false
		}
	case !q.followed[queue]:
		q.all[queue].Follow(q.all[0].Record())
		q.followed[queue] = true
	}
	q.current = queue
}

// Count is how many queues there are.
func (q *Queues) Count() int { return len(q.all) }

// Unwrap is the queue in use.
func (q *Queues) Unwrap() Device { return q.all[q.current] }

// Do implements Device.
func (q *Queues) Do(op Op) { q.all[q.current].Do(op) }

// Has implements Device.
func (q *Queues) Has(op Op) bool { return q.all[0].Has(op) }

// Name implements Device.
func (q *Queues) Name() string { return q.all[0].Name() }

// Host implements Device.
func (q *Queues) Host() bool { return q.all[0].Host() }

// Alloc implements Device.
func (q *Queues) Alloc(t Type, n int) (Mem, error) {
	m, err := q.all[q.current].Alloc(t, n)
	if err == nil {
		q.owner[m.Pointer()] = q.current
	}
	return m, err
}

// Free implements Device: it waits for all queues, any of which may use the memory.
func (q *Queues) Free(m Mem) {
	if m.Absent() {
		return
	}
	for _, other := range q.all {
		_ = Wait(other.Record()) // a failure is kept for Synchronize
	}
	q.all[q.owner[m.Pointer()]].Free(m)
	delete(q.owner, m.Pointer())
}

// Upload implements Device.
func (q *Queues) Upload(dst Mem, src []byte) { q.all[q.current].Upload(dst, src) }

// Download implements Device.
func (q *Queues) Download(dst []byte, src Mem) { q.all[q.current].Download(dst, src) }

// Record implements Device.
func (q *Queues) Record() Event { return q.all[q.current].Record() }

// Synchronize implements Device: for the queue in use, and all others when that is queue 0.
func (q *Queues) Synchronize() error {
	if q.current > 0 {
		return q.all[q.current].Synchronize()
	}
	return q.each(Queue.Synchronize)
}

// Close implements Device.
func (q *Queues) Close() error { return q.each(Queue.Close) }

func (q *Queues) each(f func(Queue) error) (err error) {
	for _, one := range q.all {
		err = errors.Join(err, f(one))
	}
	return err
}

// QueuesOf are the queues that a device is, or that it is a wrapper around; nil: it has one.
func QueuesOf(d Device) *Queues {
	for {
		if q, ok := d.(*Queues); ok {
			return q
		}
		w, ok := d.(interface{ Unwrap() Device })
		if !ok {
			return nil
		}
		d = w.Unwrap()
	}
}
