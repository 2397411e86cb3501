package worker

import (
	"context"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// eventLog is the worker's stream of events: appended to by training, replayed from any point by the daemon, which may come
// back after a restart of its own. It keeps every event: a job has a few per committed round.
type eventLog struct {
	mu     sync.Mutex
	events []control.Event
	grown  chan struct{} // closed and replaced at each append or delivery
	// delivered is the newest event that a reader has been sent.
	delivered uint64
}

func newEventLog() *eventLog { return &eventLog{grown: make(chan struct{})} }

// append numbers the event, stamps it and wakes the readers.
func (l *eventLog) append(e control.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Seq = uint64(len(l.events)) + 1
	e.Time = time.Now().UTC()
	l.events = append(l.events, e)
	l.wake()
}

// wake wakes all that wait for a change. The caller holds mu.
func (l *eventLog) wake() {
	close(l.grown)
	l.grown = make(chan struct{})
}

// sent notes that a reader has been sent everything up to seq.
func (l *eventLog) sent(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq > l.delivered {
		l.delivered = seq
		l.wake()
	}
}

// drain waits until some reader has been sent every event, at most for bound: the reason of a failure should not be lost with the worker. A
// daemon that comes too late finds it in the log.
func (l *eventLog) drain(ctx context.Context, bound time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	_ = l.await(ctx, func() bool { return l.delivered == uint64(len(l.events)) })
}

// after returns the events that follow seq, waiting for the first of them until ctx ends.
func (l *eventLog) after(ctx context.Context, seq uint64) (events []control.Event, err error) {
	err = l.await(ctx, func() bool {
		if n := len(l.events); seq < uint64(n) {
			events = l.events[seq:n:n]
		}
		return events != nil
	})
	return events, err
}

// await returns when done does so, which is called with mu held after each change, or when ctx ends.
func (l *eventLog) await(ctx context.Context, done func() bool) error {
	for {
		l.mu.Lock()
		over, grown := done(), l.grown
		l.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
