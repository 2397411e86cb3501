package wire

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Counters of the links of one process.
type Counters struct {
	Frames atomic.Uint64 // sent
	Bytes  atomic.Uint64 // of their payloads
	Stale  atomic.Uint64 // frames and handshakes of another generation, refused
}

func (c *Counters) sent(bytes int) {
	if c != nil {
		c.Frames.Add(1)
		c.Bytes.Add(uint64(bytes))
	}
}

func (c *Counters) stale() {
	if c != nil {
		c.Stale.Add(1)
	}
}

// closeState is how a link ends: once, for both of its ends where they share a process.
type closeState struct {
	failed chan struct{} // closed with a cause: nothing is delivered any more
	ended  chan struct{} // closed without: what was sent is still delivered

	mu       sync.Mutex
	cause    error    // set before either channel is closed
	watchers []func() // called when it is decided
}

func newCloseState() *closeState {
	return &closeState{failed: make(chan struct{}), ended: make(chan struct{})}
}

// decide ends the link, with a cause or in order, and reports whether this call did. Only the first does.
func (f *closeState) close(cause error) bool {
	f.mu.Lock()
	if f.cause != nil {
		f.mu.Unlock()
		return false
	}
	if cause == nil {
		f.cause = ErrClosed
		close(f.ended)
	} else {
		f.cause = fmt.Errorf("link failed: %w", cause)
		close(f.failed)
	}
	watchers := f.watchers
	f.mu.Unlock()
	for _, w := range watchers {
		w()
	}
	return true
}

// watch has w called when the link ends.
func (f *closeState) watch(w func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers = append(f.watchers, w)
}

// over is the cause if the link has ended, else nil.
func (f *closeState) over() error {
	select {
	case <-f.failed:
		return f.cause
	case <-f.ended:
		return f.cause
	default:
		return nil
	}
}

// direction is one direction of a link: frames, and who wants to hear of them.
type direction struct {
	frames  chan Frame
	arrived atomic.Pointer[func()]

	line *Line // that frames pass first; nil: none
	// credits, with a line, holds a token for each frame that was sent and not received: those under way count against the
	// depth, so the line always finds room in frames.
	credits chan struct{}
}

func newDirection(depth int, line *Line) *direction {
	l := &direction{frames: make(chan Frame, depth), line: line}
	if line != nil {
		l.credits = make(chan struct{}, depth)
	}
	return l
}

// freed notes that a frame was received or dropped.
func (l *direction) freed() {
	if l.line != nil {
		<-l.credits
	}
}

// underWay reports whether a frame was sent and not received.
func (l *direction) underWay() bool { return len(l.credits) > 0 }

func (l *direction) notify() {
	if f := l.arrived.Load(); f != nil {
		(*f)()
	}
}

// queue is the part of an end that both kinds of link share: frames in, frames out, and how the link ends.
type queue struct {
	spec    Spec
	pool    *pool
	state   *closeState
	in, out *direction
}

// NewFrame implements End.
func (q *queue) NewFrame(h Header, n int) Frame { return q.pool.frame(h, n) }

// Send implements End.
func (q *queue) Send(ctx context.Context, f Frame) error {
	bytes := len(f.Payload)
	err := q.admit(f)
	if err == nil {
		err = q.put(ctx, f)
	}
	if err != nil {
		f.Release()
		return err
	}
	q.spec.Counters.sent(bytes)
	if q.out.line == nil {
		q.out.notify()
	}
	return nil
}

// admit refuses what the other end would refuse.
func (q *queue) admit(f Frame) error {
	if f.Generation != q.spec.Generation {
		q.spec.Counters.stale()
		return &StaleError{Object: "frame (" + f.String() + ")", Have: q.spec.Generation, Found: f.Generation}
	}
	if len(f.Payload) > q.spec.MaxBytes {
		return fmt.Errorf("send %v: payload is %d bytes, the link carries at most %d", f.Header, len(f.Payload), q.spec.MaxBytes)
	}
	return q.state.over()
}

func (q *queue) put(ctx context.Context, f Frame) error {
	if q.out.line != nil {
		return q.sendOnLine(ctx, f)
	}
	select {
	case q.out.frames <- f:
		return nil
	default:
	}
	select {
	case q.out.frames <- f:
		return nil
	case <-q.state.failed:
		return q.state.cause
	case <-q.state.ended:
		return q.state.cause
	case <-ctx.Done():
		return fmt.Errorf("send %v: %w", f.Header, context.Cause(ctx))
	}
}

// sendOnLine is put for a direction with a line.
func (q *queue) sendOnLine(ctx context.Context, f Frame) error {
	select {
	case q.out.credits <- struct{}{}:
	case <-q.state.failed:
		return q.state.cause
	case <-q.state.ended:
		return q.state.cause
	case <-ctx.Done():
		return fmt.Errorf("send %v: %w", f.Header, context.Cause(ctx))
	}
	if err := q.out.line.carry(inFlightFrame{frame: f, to: q.out, state: q.state, trace: q.spec.Trace}); err != nil {
		q.out.freed()
		return fmt.Errorf("send %v: %w", f.Header, err)
	}
	return nil
}

// Receive implements End.
func (q *queue) Receive(ctx context.Context) (Frame, error) {
	for {
		if f, ok, err := q.TryReceive(); ok || err != nil {
			return f, err
		}
		ended := q.state.ended
		if q.in.underWay() {
			ended = nil // what was sent before still comes
		}
		select {
		case f := <-q.in.frames:
			q.in.freed()
			return f, nil
		case <-q.state.failed:
		case <-ended:
		case <-ctx.Done():
			return Frame{}, fmt.Errorf("receive: %w", context.Cause(ctx))
		}
	}
}

// TryReceive implements End.
func (q *queue) TryReceive() (Frame, bool, error) {
	over := q.state.over() // asked first: what was sent before an end in order is in the queue by then
	select {
	case <-q.state.failed:
		return Frame{}, false, q.state.cause
	default:
	}
	select {
	case f := <-q.in.frames:
		q.in.freed()
		return f, true, nil
	default:
		if q.in.underWay() {
			return Frame{}, false, nil // its notice comes after it
		}
		return Frame{}, false, over
	}
}

// OnArrival implements End.
func (q *queue) OnArrival(f func()) {
	q.in.arrived.Store(&f)
	q.state.watch(f)
	if len(q.in.frames) > 0 || q.state.over() != nil {
		f()
	}
}

// NewPair returns the two ends of a link inside one process. Frames cross without a copy: what one end sends is the very
// payload that the other receives.
func NewPair(s Spec) (lower, upper End, err error) {
	if err := s.Validate(); err != nil {
		return nil, nil, err
	}
	down, up := newDirection(s.Depth, s.Down), newDirection(s.Depth, s.Up)
	p, f := newPool(), newCloseState()
	return &pairEnd{queue{s, p, f, up, down}}, &pairEnd{queue{s, p, f, down, up}}, nil
}

type pairEnd struct{ queue }

// Close implements End.
func (e *pairEnd) Close(cause error) error {
	e.state.close(cause)
	return nil
}
