package trace

import (
	"sync"
	"time"
)

// Rate counts something, tokens for example, in total and over a sliding window.
type Rate struct {
	length time.Duration // of the window

	mu     sync.Mutex
	total  uint64
	window *slider // nil before the first Add
	slices [windowSlices]uint64
}

// NewRate looks back over about a window.
func NewRate(window time.Duration) *Rate { return &Rate{length: window} }

// Add counts n more at now, on the clock of Now. The window begins with the first call, which is not in it: what it counts
// took an unknown time.
func (r *Rate) Add(now time.Duration, n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total += n
	if r.window == nil {
		w := newSlider(r.length, now)
		r.window = &w
		return
	}
	r.advance(now)
	if i, ok := r.window.index(now); ok {
		r.slices[i] += n
	}
}

func (r *Rate) advance(t time.Duration) { r.window.advance(t, func(i int) { r.slices[i] = 0 }) }

// Total is everything counted.
func (r *Rate) Total() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// PerSecond is the rate over the window that ends at now; 0 before there is one.
func (r *Rate) PerSecond(now time.Duration) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.window == nil {
		return 0
	}
	r.advance(now)
	sum := uint64(0)
	for _, n := range r.slices {
		sum += n
	}
	if span := r.window.span(now); span > 0 {
		return float64(sum) / span.Seconds()
	}
	return 0
}
