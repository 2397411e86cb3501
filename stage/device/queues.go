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
	Device   // the queue in use
	all      []Queue
	current  int
	followed []bool                 // by queue: it has been told to wait for all that queue 0 was given
	owner    map[unsafe.Pointer]int // of each allocation: the queue that made it
}

var _ Device = (*Queues)(nil)

// NewQueues joins queues, at least one, that share memory. It closes them with itself.
func NewQueues(all []Queue) *Queues {
	return &Queues{Device: all[0], all: all, followed: make([]bool, len(all)), owner: map[unsafe.Pointer]int{}}
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
	q.current, q.Device = queue, q.all[queue]
}

// Count is how many queues there are.
func (q *Queues) Count() int { return len(q.all) }

// Unwrap is the queue in use.
func (q *Queues) Unwrap() Device { return q.Device }

// Alloc implements Device.
func (q *Queues) Alloc(t Type, n int) (Mem, error) {
	m, err := q.Device.Alloc(t, n)
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

// Synchronize implements Device: for the queue in use, and all others when that is queue 0.
func (q *Queues) Synchronize() error {
	if q.current > 0 {
		return q.Device.Synchronize()
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
	q, _ := Of[*Queues](d)
	return q
}
