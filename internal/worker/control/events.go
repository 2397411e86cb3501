package control

import (
	"context"
	"sync"
	"time"
)

// EventLog is a worker's stream of events: appended to by training, replayed from any point by the daemon, which may come
// back after a restart of its own. It keeps every event: a job has a few per committed round.
type EventLog struct {
	generation uint64

	mu        sync.Mutex
	events    []Event
	delivered uint64        // the newest event that a reader has been sent
	changed   chan struct{} // closed and replaced at each append or delivery
}

// NewEventLog returns an empty log of a generation.
func NewEventLog(generation uint64) *EventLog {
	return &EventLog{generation: generation, changed: make(chan struct{})}
}

// Append numbers the event, says when and of which generation it is, and wakes the readers.
func (l *EventLog) Append(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Seq, e.Time, e.Generation = uint64(len(l.events))+1, time.Now().UTC(), l.generation
	l.events = append(l.events, e)
	l.wake()
}

// wake wakes all that wait for a change. The caller holds mu.
func (l *EventLog) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// sent notes that a reader has been sent everything up to seq.
func (l *EventLog) sent(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq > l.delivered {
		l.delivered = seq
		l.wake()
	}
}

// Drain waits until some reader has been sent every event, at most for bound: the reason of a failure should not be lost with the
// worker. A daemon that comes too late finds it in the log.
func (l *EventLog) Drain(ctx context.Context, bound time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	_ = l.await(ctx, func() bool { return l.delivered == uint64(len(l.events)) })
}

// After returns the events that follow seq, waiting for the first of them until ctx ends.
func (l *EventLog) After(ctx context.Context, seq uint64) (events []Event, err error) {
	err = l.await(ctx, func() bool {
		if n := len(l.events); seq < uint64(n) {
			events = l.events[seq:n:n]
		}
		return events != nil
	})
	return events, err
}

// await returns when done does so, which is called with mu held after each change, or when ctx ends.
func (l *EventLog) await(ctx context.Context, done func() bool) error {
	for {
		l.mu.Lock()
		over, changed := done(), l.changed
		l.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
