package coordinator

import (
	"container/heap"
	"context"
	"errors"
	"iter"
	"time"
)

// simulation is time as a number, and what happens in its order. Tasks are coroutines, of which one runs at a time: the same happenings give the
// same run, whatever the machine does.
type simulation struct {
	at      time.Duration
	coming  happenings
	count   int
	running *task
	open    map[*task]bool // tasks that have not ended
}

// happening is something that is done at a time. Those of one time are done in the order in which they were asked for.
type happening struct {
	at    time.Duration
	order int
	do    func()
}

type happenings []happening

func (h happenings) Len() int      { return len(h) }
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h happenings) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h *happenings) Push(x any) { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	all := *h
	last := all[len(all)-1]
	*h = all[:len(all)-1]
	return last
}

func newSimulation() *simulation { return &simulation{open: map[*task]bool{}} }

// epoch is the time at which simulations begin.
var epoch = time.Unix(1000, 0)

func (s *simulation) now() time.Time { return epoch.Add(s.at) }

// after has something done later.
func (s *simulation) after(d time.Duration, do func()) {
	s.count++
	heap.Push(&s.coming, happening{s.at + d, s.count, do})
}

// step does what comes next. It returns false where nothing does, or only after a time.
func (s *simulation) step(until time.Duration) bool {
	if len(s.coming) == 0 || s.coming[0].at > until {
		return false
	}
	next := heap.Pop(&s.coming).(happening)
	s.at = next.at
	next.do()
	return true
}

// close ends what still runs.
func (s *simulation) close() {
	for t := range s.open {
		t.stop()
	}
	clear(s.open)
}

// task is a coroutine of a host.
type task struct {
	host  *simulatedHost
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	done  func()
}

var errStopped = errors.New("the host of a task is gone")

// sleep holds the task that runs up for a time.
func (s *simulation) sleep(d time.Duration) {
	t := s.running
	s.after(d, func() { s.resume(t) })
	s.park()
}

// park holds the task that runs up until somebody resumes it.
func (s *simulation) park() {
	if !s.running.yield(struct{}{}) {
		panic(errStopped)
	}
}

// resume lets a task run until it waits again, or ends. That of a host that is gone ends where it is.
func (s *simulation) resume(t *task) {
	if !s.open[t] {
		return
	}
	if t.host.gone {
		delete(s.open, t)
		t.stop()
		return
	}
	before := s.running
	s.running = t
	_, more := t.next()
	s.running = before
	if !more {
		delete(s.open, t)
		if t.done != nil {
			t.done()
		}
	}
}

// simulatedHost is the host of one coordinator.
type simulatedHost struct {
	*simulation
	gone bool // its daemon was killed: nothing that it runs goes on
}

func (h *simulatedHost) begin(do, done func()) {
	t := &task{host: h, done: done}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer func() {
			if e := recover(); e != nil && e != errStopped { //nolint:errorlint // it is that value
				panic(e)
			}
		}()
		do()
	})
	h.open[t] = true
	h.after(0, func() { h.resume(t) })
}

func (h *simulatedHost) spawn(do func()) { h.begin(do, nil) }

func (h *simulatedHost) together(all []func()) {
	left, me := len(all), h.running
	for _, do := range all {
		h.begin(do, func() {
			if left--; left == 0 {
				h.after(0, func() { h.resume(me) })
			}
		})
	}
	if left > 0 {
		h.park()
	}
}

func (h *simulatedHost) pause(_ context.Context, d time.Duration) { h.sleep(d) }

func (h *simulatedHost) join() {}
