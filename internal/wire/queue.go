package wire

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/avgpipe/avgpipe/internal/trace"
)

// closeState is how a link ends: once, for both of its ends where they share a process.
type closeState struct {
	done chan struct{} // closed when the link has ended

	mu       sync.Mutex
	cause    error    // set before done is closed: ErrClosed for an end in order
	watchers []func() // called when the link has ended
}

func newCloseState() *closeState { return &closeState{done: make(chan struct{})} }

// close ends the link, with a cause or in order, and reports whether this call did. Only the first does.
func (s *closeState) close(cause error) bool {
	s.mu.Lock()
	if s.cause != nil {
		s.mu.Unlock()
		return false
	}
	s.cause = ErrClosed
	if cause != nil {
		s.cause = fmt.Errorf("link failed: %w", cause)
	}
	close(s.done)
	watchers := s.watchers
	s.mu.Unlock()
	for _, w := range watchers {
		w()
	}
	return true
}

// watch has w called when the link ends.
func (s *closeState) watch(w func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = append(s.watchers, w)
}

// over is the cause if the link has ended, else nil.
func (s *closeState) over() error {
	select {
	case <-s.done:
		return s.cause
	default:
		return nil
	}
}

// inOrder reports whether the link has ended without a cause: what was sent is still delivered.
func (s *closeState) inOrder() bool { return s.over() == ErrClosed } //nolint:errorlint // the very value that close sets

// failed reports whether the link has ended with a cause: nothing is delivered any more.
func (s *closeState) failed() bool { return s.over() != nil && !s.inOrder() }

// direction is one direction of a link: frames, and who wants to hear of them.
type direction struct {
	frames  chan Frame
	arrived atomic.Pointer[func()]

	line Carrier // that frames pass first; nil: none
	// credits holds a token for each frame that was sent and not received: those that a line carries count against the depth, so
	// there is always room in frames for what has a credit.
	credits chan struct{}
}

func newDirection(depth int, line Carrier) *direction {
	return &direction{frames: make(chan Frame, depth), credits: make(chan struct{}, depth), line: line}
}

// push queues a frame as soon as there is room, or has the line carry it. It fails when the link or ctx ends first.
func (d *direction) push(ctx context.Context, f Frame, s *closeState, t trace.Listener) error {
	select {
	case d.credits <- struct{}{}:
	default:
		select {
		case d.credits <- struct{}{}:
		case <-s.done:
			return s.cause
		case <-ctx.Done():
			return fmt.Errorf("send %v: %w", f.Header, context.Cause(ctx))
		}
	}
	if d.line == nil {
		d.frames <- f
		d.notify()
		return nil
	}
	if err := d.line.carry(inFlightFrame{frame: f, to: d, state: s, trace: t}); err != nil {
		d.freed()
		return fmt.Errorf("send %v: %w", f.Header, err)
	}
	return nil
}

// freed notes that a frame was received or dropped.
func (d *direction) freed() { <-d.credits }

// underWay reports whether a frame was sent and not received.
func (d *direction) underWay() bool { return len(d.credits) > 0 }

func (d *direction) notify() {
	if f := d.arrived.Load(); f != nil {
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
	err := q.admit(f)
	if err == nil {
		err = q.out.push(ctx, f, q.state, q.spec.Trace)
	}
	if err != nil {
		f.Release()
	}
	return err
}

// admit refuses what the other end would refuse.
func (q *queue) admit(f Frame) error {
	if err := f.representable(); err != nil {
		return err
	}
	if f.Generation != q.spec.Generation {
		return stale("frame ("+f.String()+")", q.spec.Generation, f.Generation)
	}
	if len(f.Payload) > q.spec.MaxBytes {
		return fmt.Errorf("send %v: payload is %d bytes, the link carries at most %d", f.Header, len(f.Payload), q.spec.MaxBytes)
	}
	return q.state.over()
}

// Receive implements End.
func (q *queue) Receive(ctx context.Context) (Frame, error) {
	for {
		if f, ok, err := q.TryReceive(); ok || err != nil {
			return f, err
		}
		done := q.state.done
		if q.state.inOrder() && q.in.underWay() {
			done = nil // what was sent before still comes
		}
		select {
		case f := <-q.in.frames:
			q.in.freed()
			return f, nil
		case <-done:
		case <-ctx.Done():
			return Frame{}, fmt.Errorf("receive: %w", context.Cause(ctx))
		}
	}
}

// TryReceive implements End.
func (q *queue) TryReceive() (Frame, bool, error) {
	over := q.state.over() // asked first: what was sent before an end in order is in the queue by then
	if q.state.failed() {
		return Frame{}, false, q.state.cause
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
	p, state := newPool(s), newCloseState()
	return &pairEnd{queue{s, p, state, up, down}}, &pairEnd{queue{s, p, state, down, up}}, nil
}

type pairEnd struct{ queue }

// Close implements End.
func (e *pairEnd) Close(cause error) error {
	e.state.close(cause)
	return nil
}

// alignment of every payload, in bytes: a cache line, and the widest vector register.
const alignment = 64

// pool keeps the payloads of one link for reuse. A link carries a handful of sizes, so it keeps one list per size and
// never holds more buffers than were once in flight.
type pool struct {
	mu   sync.Mutex
	free map[int][][]byte // by capacity
	make func(n int) []byte
	give func(Frame) // put, as a value made once
}

func newPool(s Spec) *pool {
	p := &pool{free: make(map[int][][]byte), make: s.Memory}
	p.give = p.put
	return p
}

// get returns n bytes aligned to 64.
func (p *pool) get(n int) []byte {
	size := (n + alignment - 1) &^ (alignment - 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.free[size]
	if len(list) == 0 {
		return p.fresh(size)[:n]
	}
	b := list[len(list)-1]
	p.free[size] = list[:len(list)-1]
	return b[:n]
}

// fresh makes a payload of size bytes.
func (p *pool) fresh(size int) []byte {
	if p.make != nil {
		if b := p.make(size); b != nil {
			return b
		}
	}
	return aligned(size)
}

func (p *pool) put(f Frame) {
	b := f.Payload
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free[cap(b)] = append(p.free[cap(b)], b)
}

// frame returns a frame whose payload goes back to p.
func (p *pool) frame(h Header, n int) Frame {
	return Frame{Header: h, Payload: p.get(n), release: p.give}
}

// aligned allocates size zeroed bytes, a multiple of the alignment, and nothing behind them: cap is size.
func aligned(size int) []byte {
	raw := make([]byte, size+alignment)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(raw)))) & (alignment - 1)
	return raw[skip : skip+size : skip+size]
}
