package trace

import "time"

// windowSlices is how finely a window slides.
const windowSlices = 16

// slider divides time into slices and knows which of them the window shows. The owner keeps windowSlices values, that of slice
// n at n % windowSlices.
type slider struct {
	slice  time.Duration
	begin  time.Duration // when counting began
	newest int64         // number of the newest slice, from the process's Epoch
}

func newSlider(window, begin time.Duration) slider {
	s := slider{slice: max(window/windowSlices, time.Millisecond), begin: begin}
	s.newest = int64(begin / s.slice)
	return s
}

// advance moves the window on to t and has the owner empty the values of slices that come into it.
func (s *slider) advance(t time.Duration, empty func(i int)) {
	n := int64(t / s.slice)
	s.newest = max(s.newest, n-windowSlices) // slices beyond were never seen
	for s.newest < n {
		s.newest++
		empty(int(s.newest % windowSlices))
	}
}

// index of t's value; false when t lies before the window.
func (s *slider) index(t time.Duration) (int, bool) {
	n := int64(t / s.slice)
	return int(n % windowSlices), n > s.newest-windowSlices
}

// span is how long the window that ends at now is.
func (s *slider) span(now time.Duration) time.Duration {
	return now - max(s.begin, time.Duration(s.newest-windowSlices+1)*s.slice)
}
