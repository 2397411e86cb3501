package schedule

// event is a point of the simulated future.
type event struct {
	time    float64
	index   int32 // a process, or as many more as there are processes: a device
	version int32 // of what a shared device runs
	ready   bool  // the process's op is ready; else the op that the subject runs ends
}

// before orders happenings: by time; then ends before arrivals, so that a device that becomes free knows all that is ready;
// then by number.
func (h event) before(other event) bool {
	switch {
	case h.time != other.time:
		return h.time < other.time
	case h.ready != other.ready:
		return other.ready
	}
	return h.index < other.index
}

// eventQueue is what is going to happen: a binary heap, the next on top. A single pipeline shares nothing: each device has one
// row, and each direction of a link is fed by one device, in the order of that row. So what happens on one
// device need not wait for earlier times elsewhere, and a stack, unsorted, finds the same times sooner.
type eventQueue struct {
	heap     []event
	unsorted bool
}

func (a *eventQueue) empty() bool { return len(a.heap) == 0 }

// later reports whether nothing more happens at an instant.
func (a *eventQueue) later(now float64) bool { return len(a.heap) == 0 || a.heap[0].time > now }

func (a *eventQueue) push(h event) {
	a.heap = append(a.heap, h)
	if a.unsorted {
		return
	}
	i := len(a.heap) - 1
	for i > 0 {
		above := (i - 1) / 2
		if !h.before(a.heap[above]) {
			break
		}
		a.heap[i] = a.heap[above]
		i = above
	}
	a.heap[i] = h
}

func (a *eventQueue) pop() event {
	next, last := a.heap[0], a.heap[len(a.heap)-1]
	a.heap = a.heap[:len(a.heap)-1]
	n := len(a.heap)
	if n == 0 || a.unsorted {
		return last
	}
	i := 0
	for {
		below := 2*i + 1
		if below >= n {
			break
		}
		if below+1 < n && a.heap[below+1].before(a.heap[below]) {
			below++
		}
		if !a.heap[below].before(last) {
			break
		}
		a.heap[i] = a.heap[below]
		i = below
	}
	a.heap[i] = last
	return next
}
