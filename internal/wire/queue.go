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

// fate is how a link ends: once, for both of its ends where they share a process.
type fate struct {
	failed chan struct{} // closed with a cause: nothing is delivered any more
	ended  chan struct{} // closed without: what was sent is still delivered

	mu       sync.Mutex
	cause    error    // set before either channel is closed
	watchers []func() // called when it is decided
}

func newFate() *fate {
	return &fate{failed: make(chan struct{}), ended: make(chan struct{})}
}

// decide ends the link, with a cause or in order, and reports whether this call did. Only the first does.
func (f *fate) decide(cause error) bool {
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
func (f *fate) watch(w func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers = append(f.watchers, w)
}

// over is the cause if the link has ended, else nil.
func (f *fate) over() error {
	select {
	case <-f.failed:
		return f.cause
	case <-f.ended:
		return f.cause
	default:
		return nil
	}
}

// lane is one direction of a link: frames, and who wants to hear of them.
type lane struct {
	frames  chan Frame
	arrived atomic.Pointer[func()]

	line *Line // that frames pass first; nil: none
	// places, with a line, holds a token for each frame that was sent and not received: those under way count against the
	// depth, so the line always finds room in frames.
	places chan struct{}
}

func newLane(depth int, line *Line) *lane {
	l := &lane{frames: make(chan Frame, depth), line: line}
	if line != nil {
		l.places = make(chan struct{}, depth)
	}
	return l
}

// took notes that a frame was received or dropped.
func (l *lane) took() {
	if l.line != nil {
		<-l.places
	}
}

// underWay reports whether a frame was sent and not received.
func (l *lane) underWay() bool { return len(l.places) > 0 }

func (l *lane) notify() {
	if f := l.arrived.Load(); f != nil {
		(*f)()
	}
}

// queue is the part of an end that both kinds of link share: frames in, frames out, and the link's fate.
type queue struct {
	spec    Spec
	pool    *pool
	fate    *fate
	in, out *lane
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
	return q.fate.over()
}

func (q *queue) put(ctx context.Context, f Frame) error {
	if q.out.line != nil {
		return q.post(ctx, f)
	}
	select {
	case q.out.frames <- f:
		return nil
	default:
	}
	select {
	case q.out.frames <- f:
		return nil
	case <-q.fate.failed:
		return q.fate.cause
	case <-q.fate.ended:
		return q.fate.cause
	case <-ctx.Done():
		return fmt.Errorf("send %v: %w", f.Header, context.Cause(ctx))
	}
}

// post is put for a lane with a line.
func (q *queue) post(ctx context.Context, f Frame) error {
	select {
	case q.out.places <- struct{}{}:
	case <-q.fate.failed:
		return q.fate.cause
	case <-q.fate.ended:
		return q.fate.cause
	case <-ctx.Done():
		return fmt.Errorf("send %v: %w", f.Header, context.Cause(ctx))
	}
	if err := q.out.line.carry(parcel{frame: f, to: q.out, fate: q.fate, trace: q.spec.Trace}); err != nil {
		q.out.took()
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
		ended := q.fate.ended
		if q.in.underWay() {
			ended = nil // what was sent before still comes
		}
		select {
		case f := <-q.in.frames:
			q.in.took()
			return f, nil
		case <-q.fate.failed:
		case <-ended:
		case <-ctx.Done():
			return Frame{}, fmt.Errorf("receive: %w", context.Cause(ctx))
		}
	}
}

// TryReceive implements End.
func (q *queue) TryReceive() (Frame, bool, error) {
	over := q.fate.over() // asked first: what was sent before an end in order is in the queue by then
	select {
	case <-q.fate.failed:
		return Frame{}, false, q.fate.cause
	default:
	}
	select {
	case f := <-q.in.frames:
		q.in.took()
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
	q.fate.watch(f)
	if len(q.in.frames) > 0 || q.fate.over() != nil {
		f()
	}
}

// NewPair returns the two ends of a link inside one process. Frames cross without a copy: what one end sends is the very
// payload that the other receives.
func NewPair(s Spec) (lower, upper End, err error) {
	if err := s.Validate(); err != nil {
		return nil, nil, err
	}
	down, up := newLane(s.Depth, s.Down), newLane(s.Depth, s.Up)
	p, f := newPool(), newFate()
	return &pairEnd{queue{s, p, f, up, down}}, &pairEnd{queue{s, p, f, down, up}}, nil
}

type pairEnd struct{ queue }

// Close implements End.
func (e *pairEnd) Close(cause error) error {
	e.fate.decide(cause)
	return nil
}
