package wire

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// beside is what an end has whose frames a path carries. Its connection says when the link ends and why, and after how many frames; and that the other end
// has all frames, by half-closing. So a process that dies is seen at once, whatever the path knows.
type beside struct {
	path Path
	sent uint64                // frames, for the writer
	lost atomic.Pointer[error] // why the path failed
	all  chan struct{}         // closed when all frames are here, or no more come

	mu    sync.Mutex
	came  uint64 // frames
	last  uint64 // how many there are
	known bool   // last is
	over  bool   // all is closed
	timer *time.Timer
}

func newBeside(p Path) *beside { return &beside{path: p, all: make(chan struct{})} }

// send hands a frame to the path. Its payload is memory of the link's pool, or short.
func (b *beside) send(header, payload []byte) error {
	err := b.path.Send(header, payload)
	if err == nil {
		b.sent++
	}
	return err
}

// arrived counts a frame, or takes the number of all that there are, and reports whether all are here now.
func (b *beside) arrived(frames uint64, last *uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.came += frames
	if last != nil {
		b.last, b.known = *last, true
	}
	return b.known && b.came == b.last && b.end()
}

// end closes all, and reports whether this call did. The caller has the mutex.
func (b *beside) end() bool {
	if b.over {
		return false
	}
	b.over = true
	close(b.all)
	return true
}

// finish bounds what a path may do after the end of its link.
func (b *beside) finish(cause error) {
	if cause != nil {
		b.path.Stop()
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(orderTimeout, b.path.Stop)
}

// done frees the path with the last goroutine of the link. Where one is left, that waits for frames which do not come any more.
func (b *beside) done(left int) {
	switch left {
	case 1:
		b.path.Stop()
	case 0:
		b.mu.Lock()
		if b.timer != nil {
			b.timer.Stop()
		}
		b.mu.Unlock()
		_ = b.path.Close() // the link is over, and all of it that mattered was said
	}
}

// losePath has the end of the connection's frames end the link: the other end, when it ended the path, says why there.
func (e *tcpEnd) losePath(err error) {
	e.beside.lost.CompareAndSwap(nil, &err)
	_ = e.conn.SetReadDeadline(time.Now().Add(causeTimeout))
}

// readPath takes frames from the path until it is stopped.
func (e *tcpEnd) readPath() {
	defer e.done()
	from, header := pathSource{e.beside.path, e.spec.Watch}, make([]byte, headerBytes)
	for {
		f, err := e.readFrame(from, header)
		if err == nil && f.Kind == closing {
			err = fmt.Errorf("%v, expected on the connection", f.Header)
		}
		if err != nil {
			e.beside.mu.Lock()
			missing := e.beside.end()
			e.beside.mu.Unlock()
			if missing {
				e.losePath(err)
			}
			return
		}
		if !e.probed(f) {
			e.deliver(f) // where the link is over, the other end still has to be rid of its frames
		}
		if e.beside.arrived(1, nil) {
			e.finish(nil)
		}
	}
}

// readEnd takes the end of the link from the connection.
func (e *tcpEnd) readEnd() {
	defer e.done()
	f, err := e.readFrame(connSource{e.reader}, make([]byte, headerBytes))
	switch {
	case err == nil && f.Kind != closing:
		err = fmt.Errorf("%v, expected on the path", f.Header)
		f.Release()
	case err == nil && len(f.Payload) > 0:
		e.closedByPeer(f)
		return
	}
	if err != nil {
		e.broken(err)
		return
	}
	f.Release()
	if e.beside.arrived(0, &f.Step) {
		e.finish(nil)
	}
	_, _ = io.Copy(io.Discard, e.conn) // ends when the other end has all frames of this one, or is gone
	select {
	case <-e.beside.all:
	default:
		e.broken(errors.New("the other end is gone before its last frames came"))
	}
}
