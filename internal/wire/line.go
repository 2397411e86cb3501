package wire

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/avgpipe/avgpipe/internal/pace"
	"github.com/avgpipe/avgpipe/internal/trace"
)

// Shape says how slow a line is. Neither is negative.
type Shape struct {
	// Latency is the time from the moment a frame has left to its arrival.
	Latency time.Duration
	// Bandwidth is how many bytes of payload leave in a second; 0: no limit.
	Bandwidth float64
}

// leave is how long n bytes take to leave.
func (s Shape) leave(n int) time.Duration {
	if s.Bandwidth == 0 {
		return 0
	}
	return time.Duration(float64(n) / s.Bandwidth * float64(time.Second))
}

// Line is one direction between two devices on which frames take time. All links of this direction share it: a frame leaves
// when the one before it has left, whichever pipeline's it is, and arrives a latency later. Senders do not wait.
type Line struct {
	lane
	shape Shape
	free  time.Time    // when the last frame has left; the lane's mu guards it
	late  atomic.Int64 // nanoseconds: by how much frames arrived later than they should have, added up
}

// Carrier takes the frames of a direction from one end to the other: a Line or a Mover.
type Carrier interface {
	// carry takes a frame for which there is room in p.to.
	carry(p inFlightFrame) error
}

// lane is frames under way in one direction, which a goroutine takes to their end in their order.
type lane struct {
	mu     sync.Mutex
	queue  []inFlightFrame
	closed bool
	change sync.Cond // of queue and closed

	stop chan struct{}
	done chan struct{}
}

func (l *lane) init() {
	l.change.L = &l.mu
	l.stop, l.done = make(chan struct{}), make(chan struct{})
}

// inFlightFrame is a frame on its way.
type inFlightFrame struct {
	frame   Frame
	left    time.Duration // when it began to leave, on the clock of trace.Now
	arrives time.Time
	to      *direction
	state   *closeState // of its link
	trace   trace.Listener
}

// NewLine starts a line. Close ends it.
func NewLine(s Shape) *Line {
	l := &Line{shape: s}
	l.init()
	go func() { // on a thread of its own, which ends with it
		runtime.LockOSThread()
		_ = pace.Tighten() // where the system refuses, frames may be 50 us late; an emulated device says so
		l.run(l.pass)
	}()
	return l
}

// Close drops what is under way and returns when the goroutine has ended. Links that use it must not be used any more.
func (l *lane) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		l.change.Signal()
		close(l.stop)
	}
	l.mu.Unlock()
	<-l.done
}

// errLane is why a frame cannot be sent.
var errLane = errors.New("the line of the link is closed")

// add puts a frame behind the others. The caller holds mu.
func (l *lane) add(p inFlightFrame) error {
	if l.closed {
		return errLane
	}
	l.queue = append(l.queue, p)
	l.change.Signal()
	return nil
}

func (l *Line) carry(p inFlightFrame) error {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	leaves := now
	if l.free.After(now) {
		leaves = l.free
	}
	l.free = leaves.Add(l.shape.leave(len(p.frame.Payload)))
	p.left, p.arrives = leaves.Sub(trace.Epoch), l.free.Add(l.shape.Latency)
	return l.add(p)
}

// pass delivers a frame when it arrives.
func (l *Line) pass(p *inFlightFrame) bool {
	if !pace.UntilOr(p.arrives, l.stop) {
		p.drop()
		return false
	}
	l.late.Add(int64(max(0, time.Since(p.arrives))))
	p.deliver()
	return true
}

// run has pass take the frames, until it is false or the lane closes.
func (l *lane) run(pass func(p *inFlightFrame) bool) {
	defer close(l.done)
	for {
		p, ok := l.next()
		if !ok || !pass(&p) {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.queue {
		p.drop()
	}
	l.queue = nil
}

// next waits for a frame; false when the line is closed.
func (l *lane) next() (p inFlightFrame, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && !l.closed {
		l.change.Wait()
	}
	if l.closed {
		return p, false
	}
	p = l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	return p, true
}

// deliver hands the frame over, unless its link has failed meanwhile.
func (p *inFlightFrame) deliver() {
	if p.state.failed() {
		p.drop()
		return
	}
	p.trace.Emit(p.frame.sent(p.left))
	p.to.frames <- p.frame // there is room: see direction.credits
	p.to.notify()
}

func (p *inFlightFrame) drop() {
	p.frame.Release()
	p.to.freed()
}

// Network has the lines between devices, made as they are asked for.
type Network struct {
	shape func(from, to int) Shape

	mu    sync.Mutex
	lines map[[2]int]*Line
}

// NewNetwork returns a network in which frames from one device to another take what shape says.
func NewNetwork(shape func(from, to int) Shape) *Network {
	return &Network{shape: shape, lines: map[[2]int]*Line{}}
}

// Line is the line from one device to another; nil, for no line, within a device, where the shape is none, and of a nil Network.
func (n *Network) Line(from, to int) Carrier {
	if n == nil || from == to {
		return nil
	}
	s := n.shape(from, to)
	if s == (Shape{}) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	key := [2]int{from, to}
	if n.lines[key] == nil {
		n.lines[key] = NewLine(s)
	}
	return n.lines[key]
}

// Late is by how much frames to a device arrived later than they should have, added up; 0 of a nil Network.
func (n *Network) Late(to int) (all time.Duration) {
	if n == nil {
		return 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, l := range n.lines {
		if key[1] == to {
			all += time.Duration(l.late.Load())
		}
	}
	return all
}

// Close closes all lines, after the links that use them.
func (n *Network) Close() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lines {
		l.Close()
	}
}
