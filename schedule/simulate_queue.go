package schedule

// event is a point of the simulated future.
type event struct {
	time    float64
	index   int32 // a process, or as many more as there are processes: a device
	version int32 // of what a shared device runs
	ready   bool  // the process's op is ready; else the op that it runs ends
}

// before orders events: by time; then ends before arrivals, so that a device that becomes free knows all that is ready;
// then by number.
func (v event) before(other event) bool {
	switch {
	case v.time != other.time:
		return v.time < other.time
	case v.ready != other.ready:
		return other.ready
	}
	return v.index < other.index
}

// eventQueue is a binary heap, the next event on top. A single pipeline shares nothing: each device has one row, and each direction of
// a link is fed by one device, in the order of that row. So the events of one device need not wait for earlier ones of another, and a
// stack, unsorted, finds the same times sooner.
type eventQueue struct {
	heap     []event
	unsorted bool
}

func (q *eventQueue) empty() bool { return len(q.heap) == 0 }

// later reports whether nothing more happens at an instant.
func (q *eventQueue) later(now float64) bool { return len(q.heap) == 0 || q.heap[0].time > now }

func (q *eventQueue) push(v event) {
	q.heap = append(q.heap, v)
	if q.unsorted {
		return
	}
	i := len(q.heap) - 1
	for i > 0 {
		above := (i - 1) / 2
		if !v.before(q.heap[above]) {
			break
		}
		q.heap[i] = q.heap[above]
		i = above
	}
	q.heap[i] = v
}

func (q *eventQueue) pop() event {
	next, last := q.heap[0], q.heap[len(q.heap)-1]
	q.heap = q.heap[:len(q.heap)-1]
	n := len(q.heap)
	if n == 0 || q.unsorted {
		return last
	}
	i := 0
	for {
		below := 2*i + 1
		if below >= n {
			break
		}
		if below+1 < n && q.heap[below+1].before(q.heap[below]) {
			below++
		}
		if !q.heap[below].before(last) {
			break
		}
		q.heap[i] = q.heap[below]
		i = below
	}
	q.heap[i] = last
	return next
}
