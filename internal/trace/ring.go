package trace

import "sync"

// Ring keeps the newest events, for timelines.
type Ring struct {
	mu     sync.Mutex
	events []Event
	next   int
	full   bool
}

// NewRing keeps up to n events, n >= 1.
func NewRing(n int) *Ring { return &Ring{events: make([]Event, n)} }

// Add takes an event and drops the oldest when the ring is full.
func (r *Ring) Add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[r.next] = e
	if r.next++; r.next == len(r.events) {
		r.next, r.full = 0, true
	}
}

// Events returns a copy of what is kept, in the order in which it was added.
func (r *Ring) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.full {
		return append([]Event(nil), r.events[:r.next]...)
	}
	return append(append(make([]Event, 0, len(r.events)), r.events[r.next:]...), r.events[:r.next]...)
}
