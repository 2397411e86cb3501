package trace

import (
	"sync"
	"time"
)

// windowSlices is how finely a window slides.
const windowSlices = 16

// window keeps values of the newest slices of time: that of slice n, counted from the process's Epoch, at n % windowSlices.
type window[T any] struct {
	slice  time.Duration
	begin  time.Duration // when counting began
	newest int64         // number of the newest slice
	values [windowSlices]T
}

func newWindow[T any](length, begin time.Duration) window[T] {
	w := window[T]{slice: max(length/windowSlices, time.Millisecond), begin: begin}
	w.newest = int64(begin / w.slice)
	return w
}

// advance moves the window on to t, and empties the slices that come into it.
func (w *window[T]) advance(t time.Duration) {
	n := int64(t / w.slice)
	w.newest = max(w.newest, n-windowSlices) // slices beyond were never seen
	for w.newest < n {
		w.newest++
		w.values[w.newest%windowSlices] = *new(T)
	}
}

// at moves the window on to t and is its value there; nil when t lies before the window.
func (w *window[T]) at(t time.Duration) *T {
	w.advance(t)
	n := int64(t / w.slice)
	if n <= w.newest-windowSlices {
		return nil
	}
	return &w.values[n%windowSlices]
}

// span is how long the window that ends at now is.
func (w *window[T]) span(now time.Duration) time.Duration {
	return now - max(w.begin, time.Duration(w.newest-windowSlices+1)*w.slice)
}

// Rate counts something, tokens for example, over a sliding window.
type Rate struct {
	length time.Duration // of the window

	mu     sync.Mutex
	window *window[uint64] // nil before the first Add
}

// NewRate looks back over about a window.
func NewRate(window time.Duration) *Rate { return &Rate{length: window} }

// Add counts n more at now, on the clock of Now. The window begins with the first call, which is not in it: what it counts
// took an unknown time.
func (r *Rate) Add(now time.Duration, n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.window == nil {
		w := newWindow[uint64](r.length, now)
		r.window = &w
	} else if count := r.window.at(now); count != nil {
		*count += n
	}
}

// PerSecond is the rate over the window that ends at now; 0 before there is one.
func (r *Rate) PerSecond(now time.Duration) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.window == nil {
		return 0
	}
	r.window.advance(now)
	sum := uint64(0)
	for _, n := range r.window.values {
		sum += n
	}
	if span := r.window.span(now); span > 0 {
		return float64(sum) / span.Seconds()
	}
	return 0
}
