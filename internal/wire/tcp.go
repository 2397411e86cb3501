package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
)

// tcpEnd is an end of a link between nodes: a queue whose far side is a connection. The writer goroutine drains the queue's
// out, the reader goroutine fills its in; both end with the link.
type tcpEnd struct {
	queue
	link    Link
	conn    net.Conn
	reader  io.Reader // of conn
	beside  *beside   // what carries the frames; nil: conn does
	workers sync.WaitGroup
	open    atomic.Int32          // goroutines that still use conn; the last one closes it
	unsent  atomic.Pointer[error] // why a write failed
	header  [headerBytes]byte     // of the frame being written
	parts   [2][]byte
	small   [headerBytes + echoBytes]byte // a probe or an answer that is written
	probe   chan struct{}                 // one is due
	echo    chan echo
}

// newTCPEnd takes over what was opened. Frames from the other end pass line, unless that is nil.
func newTCPEnd(o opened, link Link, line Carrier, s Spec) *tcpEnd {
	e := &tcpEnd{
		queue: queue{spec: s, pool: newPool(s), state: newCloseState(), in: newDirection(s.Depth, line), out: newDirection(s.Depth, nil)},
		link:  link, conn: o.conn, reader: o.conn, probe: make(chan struct{}, 1), echo: make(chan echo, 1),
	}
	e.open.Store(2)
	if w := s.Watch; w != nil {
		w.choice.Store(&o.choice)
		w.hear(0)
		e.reader = heardReader{o.conn, w}
		e.workers.Go(e.watch)
	}
	if o.path != nil {
		e.beside = newBeside(o.path)
		e.open.Add(1)
		e.workers.Go(e.readPath)
		e.workers.Go(e.readEnd)
	} else {
		e.workers.Go(e.read)
	}
	e.workers.Go(e.write)
	return e
}

// Close implements End.
func (e *tcpEnd) Close(cause error) error {
	e.finish(cause)
	e.workers.Wait()
	return nil
}

// finish ends the link and bounds what its goroutines may still wait for.
func (e *tcpEnd) finish(cause error) {
	if !e.state.close(cause) {
		return
	}
	deadline := time.Now().Add(orderTimeout)
	if cause != nil {
		deadline = time.Now().Add(causeTimeout)
	}
	// Errors mean that the connection is gone already, which the goroutines find out themselves.
	_ = e.conn.SetWriteDeadline(deadline)
	_ = e.conn.SetReadDeadline(deadline)
	if e.beside != nil {
		e.beside.finish(cause)
	}
}

// done closes the connection when both goroutines are through with it. Where nothing can be written, TLS would still wait 5 s to write its notice of
// the end.
func (e *tcpEnd) done() {
	left := e.open.Add(-1)
	if e.beside != nil {
		e.beside.done(int(left))
	}
	if left > 0 {
		return
	}
	if over, ok := e.conn.(interface{ NetConn() net.Conn }); ok && e.unsent.Load() != nil {
		over.NetConn().Close()
		return
	}
	e.conn.Close()
}

// Send implements End. It notes when, so that the other end can tell how long the frame took.
func (e *tcpEnd) Send(ctx context.Context, f Frame) error {
	if e.spec.timed {
		f.sentAt = trace.Now()
	}
	return e.queue.Send(ctx, f)
}

// write sends what is queued until the link ends, then says why it ended.
func (e *tcpEnd) write() {
	defer e.done()
	defer e.closeWrite()
	for {
		var err error
		select {
		case f := <-e.out.frames:
			e.out.freed()
			err = e.writeFrame(f)
		case <-e.probe:
			err = e.writeProbe()
		case to := <-e.echo:
			err = e.writeEcho(to)
		case <-e.state.done:
			e.flush()
			return
		}
		switch {
		case err == nil:
		case e.beside != nil: // the connection can still say why
			e.losePath(err)
			<-e.state.done
		default:
			e.leaveToReader(err)
			return
		}
	}
}

// flush sends what was queued before the link ended in order, and says why it ended.
func (e *tcpEnd) flush() {
	for e.state.inOrder() && len(e.out.frames) > 0 {
		f := <-e.out.frames
		e.out.freed()
		if err := e.writeFrame(f); err != nil {
			if e.beside != nil {
				break
			}
			e.unsent.Store(&err)
			return
		}
	}
	if e.beside != nil && e.state.inOrder() {
		_ = e.beside.path.Flush() // what is not there in time, the other end misses
	}
	e.sendClose()
	if e.beside != nil {
		<-e.beside.all
	}
}

// writeFrame sends one frame and gives its payload back to the pool.
func (e *tcpEnd) writeFrame(f Frame) error {
	start := trace.Now()
	f.encodeSent(e.header[:], len(f.Payload), stampOf(f.sentAt))
	err := e.writeParts(e.header[:], f.Payload)
	if err == nil || e.beside == nil { // a path that has failed may still read the payload
		defer f.Release()
	}
	if err != nil {
		return err
	}
	if w := e.spec.Watch; w != nil {
		w.sent.Add(int64(headerBytes + len(f.Payload)))
	}
	e.spec.Trace.Emit(f.sent(start))
	return nil
}

// writeParts writes a header and a payload with as few calls of the kernel as there can be, or hands them to the path.
func (e *tcpEnd) writeParts(header, payload []byte) error {
	if e.beside != nil {
		return e.beside.send(header, payload)
	}
	if s, ok := e.conn.(*secured); ok {
		return s.writeFrame(header, payload)
	}
	e.parts = [2][]byte{header, payload}
	buffers := net.Buffers(e.parts[:])
	_, err := buffers.WriteTo(e.conn)
	return err
}

// sendClose tells the other end why the link ends: an empty text for an end in order. It may fail: then the other end
// sees the connection break.
func (e *tcpEnd) sendClose() {
	var text string
	if cause := errors.Unwrap(e.state.over()); cause != nil {
		text = "failed: " + cause.Error()
		text = text[:min(len(text), maxReason)]
	}
	h := e.link.header(closing, e.spec.Generation)
	if e.beside != nil {
		h.Step = e.beside.sent
	}
	h.encode(e.header[:], len(text))
	if _, err := e.conn.Write(append(e.header[:], text...)); err != nil {
		e.unsent.Store(&err)
	}
}

// leaveToReader has the reader end the link after a failed write: the other end, when it closed the connection, has
// said why, and its close frame may not have been read yet.
func (e *tcpEnd) leaveToReader(err error) {
	e.unsent.Store(&err)
	_ = e.conn.SetReadDeadline(time.Now().Add(causeTimeout))
}

// closeWrite half-closes the connection, so that what was written still arrives. The reader goes on until the other end has closed
// as well, for at most the time that finish allowed: closing with unread data would reset the connection, and the close frame
// could be lost.
func (e *tcpEnd) closeWrite() {
	if c, ok := e.conn.(interface{ CloseWrite() error }); ok && e.unsent.Load() == nil {
		_ = c.CloseWrite()
	}
}

// read fills the queue until the link ends.
func (e *tcpEnd) read() {
	defer e.done()
	header := make([]byte, headerBytes)
	for {
		f, err := e.readFrame(connSource{e.reader}, header)
		switch {
		case err != nil:
			e.broken(err)
			return
		case e.probed(f):
		case f.Kind == closing:
			e.closedByPeer(f)
			return
		case !e.deliver(f):
			// Until the other end has closed as well, or the deadline is over: closing a connection with unread data would reset it,
			// and lose what was flushed.
			_, _ = io.Copy(io.Discard, e.conn)
			return
		}
	}
}

// broken ends the link with the failure of the connection: that of the write that came first, if one did.
func (e *tcpEnd) broken(err error) {
	if unsent := e.unsent.Load(); unsent != nil {
		e.finish(fmt.Errorf("send on the %s: %w", e.name(), *unsent))
		return
	}
	if e.beside != nil {
		if lost := e.beside.lost.Load(); lost != nil && errors.Is(err, os.ErrDeadlineExceeded) { // the connection does not know why
			err = *lost
		}
	}
	e.finish(fmt.Errorf("receive on the %s: %w", e.name(), err))
}

// readFrame reads one frame into a payload of the pool.
func (e *tcpEnd) readFrame(from source, header []byte) (Frame, error) {
	if err := from.header(header); err != nil {
		return Frame{}, brokenOff(err)
	}
	h, n, err := decodeHeader(header, e.spec.MaxBytes)
	if err != nil {
		return Frame{}, err
	}
	if err := e.expected(h); err != nil {
		return Frame{}, err
	}
	if w := e.spec.Watch; w != nil {
		w.timed(h, sentOf(header))
	}
	f := e.NewFrame(h, n)
	if err := from.payload(f.Payload); err != nil {
		if e.beside == nil { // a path that has failed may still write to the payload
			f.Release()
		}
		return Frame{}, fmt.Errorf("payload of %v, %d bytes: %w", h, n, brokenOff(err))
	}
	return f, nil
}

// brokenOff says what the end of a connection means where a frame was expected.
func brokenOff(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the other end closed the connection without a reason: its process ended")
	}
	return err
}

// expected refuses a frame that belongs on another link.
func (e *tcpEnd) expected(h Header) error {
	if h.Generation != e.spec.Generation {
		return stale("frame ("+h.String()+")", e.spec.Generation, h.Generation)
	}
	down := h.From == e.link.Lower && h.To == e.link.Upper
	up := h.From == e.link.Upper && h.To == e.link.Lower
	if h.Pipeline != e.link.Pipeline || !down && !up {
		return fmt.Errorf("frame (%v) does not belong on the %v", h, e.link)
	}
	return nil
}

// deliver queues a frame for Receive. False: the link ended first.
func (e *tcpEnd) deliver(f Frame) bool {
	if w := e.spec.Watch; w != nil {
		w.delivering.Store(true)
		defer w.delivering.Store(false)
	}
	if e.in.push(context.Background(), f, e.state, e.spec.Trace) != nil { // the link's end is what ends the wait
		f.Release()
		return false
	}
	return true
}

// closedByPeer ends the link as the other end's close frame says.
func (e *tcpEnd) closedByPeer(f Frame) {
	defer f.Release()
	if len(f.Payload) == 0 {
		e.finish(nil)
		return
	}
	e.finish(fmt.Errorf("closed by the other end: %s", f.Payload))
}
