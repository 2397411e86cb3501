package trace

import (
	"sync"
	"time"
)

// Fractions say what one stage's device did in a window, as parts of its time. They add up to 1.
type Fractions struct {
	Busy           float64 // forwards and backwards
	Evaluate       float64 // forwards of evaluations
	Optimizer      float64
	Average        float64 // averaging on the device, and idle because pipelines waited for the center
	Commit         float64
	WaitUpstream   float64 // idle because pipelines waited for activations or data
	WaitDownstream float64 // idle because pipelines waited for gradients
	Idle           float64 // the rest: dispatch latency, and times in which no pipeline waited
}

// Accumulator adds up the spans of one stage over a sliding window. Its cost per span is a lock and a few additions, so it may
// listen to every span. Spans count in the slice of time in which they end.
//
// A pipeline that waits does not idle its device while another one computes. So the device's idle time is what is left of the
// window after all spans on the device, and it is attributed to upstream, downstream and average in proportion to how long
// the pipelines waited for each. Waiting for the device itself is no cause of idleness and does not count.
type Accumulator struct {
	mu     sync.Mutex
	window window[spent]
}

// spent is the time of each kind that ended in one slice.
type spent [kinds]time.Duration

// NewAccumulator looks back over about a window. Its first window begins now.
func NewAccumulator(window time.Duration) *Accumulator { return newAccumulator(window, Now()) }

func newAccumulator(window, begin time.Duration) *Accumulator {
	return &Accumulator{window: newWindow[spent](window, begin)}
}

// Add takes a span of the stage.
func (a *Accumulator) Add(e Span) {
	if e.End <= e.Start || e.Kind >= kinds {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.window.at(e.End); s != nil {
		s[e.Kind] += e.End - e.Start
	}
}

// Fractions over the window that ends at now, on the clock of Now. Before anything has passed all are 0.
func (a *Accumulator) Fractions(now time.Duration) Fractions {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.window.advance(now)
	var total spent
	for _, s := range a.window.values {
		for k, d := range s {
			total[k] += d
		}
	}
	return attribute(total, a.window.span(now))
}

// attribute turns spans into fractions of a window.
func attribute(total spent, window time.Duration) Fractions {
	onDevice := time.Duration(0)
	for k, d := range total {
		if Kind(k).OnDevice() {
			onDevice += d
		}
	}
	window = max(window, onDevice) // a span that began before the window
	if window <= 0 {
		return Fractions{}
	}
	part := func(d time.Duration) float64 { return float64(d) / float64(window) }
	f := Fractions{
		Busy: part(total[Compute]), Evaluate: part(total[Evaluate]), Optimizer: part(total[Optimizer]),
		Average: part(total[Average]), Commit: part(total[Commit]),
	}
	idle := part(window - onDevice)
	waits := total[WaitUpstream] + total[WaitDownstream] + total[WaitAverage]
	if waits == 0 {
		f.Idle = idle
		return f
	}
	// Pipelines that waited for less than the device idled do not explain all of it.
	explained := min(idle, part(waits))
	share := func(k Kind) float64 { return explained * float64(total[k]) / float64(waits) }
	f.WaitUpstream, f.WaitDownstream = share(WaitUpstream), share(WaitDownstream)
	f.Average += share(WaitAverage)
	f.Idle = idle - explained
	return f
}

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
