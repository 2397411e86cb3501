//go:build ucx && cgo && linux

package ucx

/*
#include <stdlib.h>
#include "ucx.h"
*/
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A frame is a message with its header, and its payload where that is short, and else messages of at most chunkBytes each. Both ends know all lengths from the
// header.
const (
	headerBytes = 48 // see wire
	inlineBytes = 8 << 10
	chunkBytes  = 1 << 20 // its arrival is a sign of life, so it must not take as long as an end may be silent
)

// The operations of a path, by their index in avg_path.ops. Headers that the other end has not asked for yet bound what it has to keep.
const (
	headers       = 8
	chunks        = 4
	sendHeader    = 0
	sendChunk     = sendHeader + headers
	receiveHeader = sendChunk + chunks
	receiveChunk  = receiveHeader + 1
	_             = uint(C.AVG_OPS - receiveChunk - chunks)
)

// path is a wire.Path.
type path struct {
	transport *Transport
	c         *C.struct_avg_path
	small     [headers + 1]unsafe.Pointer // memory of C for headers: those sent, and the one received
	next      int                         // of small, and of the operations for headers
	tagIn     uint64                      // of headers for this end: a secret, so that who only knows the address is not heard; payloads have the next one
	tagOut    uint64
	inline    int // bytes that came with the header received last
	events    *os.File
	loop      sync.WaitGroup
	sent      chan struct{} // something has ended: look again
	received  chan struct{}
	over      chan struct{} // closed when nothing moves any more
	err       error         // why; set before
	address   []byte

	mu     sync.Mutex
	closed bool
	memory map[*byte]C.ucp_mem_h // what devices know
	pins   runtime.Pinner        // holds that
}

// open makes a path.
func open(t *Transport) (*path, error) {
	p := &path{
		transport: t, sent: make(chan struct{}, 1), received: make(chan struct{}, 1), over: make(chan struct{}), memory: map[*byte]C.ucp_mem_h{},
	}
	if err := failure("open a path", C.avg_path_open(t.context, &p.c)); err != nil {
		return nil, err
	}
	t.open.Add(1)
	for i := range p.small {
		p.small[i] = C.malloc(headerBytes + inlineBytes)
	}
	err := p.describe()
	if err == nil {
		p.events, err = pollable(int(p.c.events))
	}
	if err != nil {
		p.err = err
		close(p.over)
		return nil, errors.Join(err, p.Close())
	}
	p.loop.Go(p.move)
	return p, nil
}

// pollable is a copy of a descriptor that Go's poller waits for.
func pollable(fd int) (*os.File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("copy the descriptor of a path: %w", err)
	}
	if err := syscall.SetNonblock(own, true); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for a path: %w", err), syscall.Close(own))
	}
	return os.NewFile(uintptr(own), "ucx"), nil
}

// describe makes the address: the tag, and the worker's.
func (p *path) describe() error {
	var secret [8]byte
	_, _ = rand.Read(secret[:]) // never fails
	p.tagIn = binary.LittleEndian.Uint64(secret[:]) &^ 1
	var address unsafe.Pointer
	var n C.size_t
	if err := failure("ask for the address of a path", C.avg_path_address(p.c, &address, &n)); err != nil {
		return err
	}
	defer C.avg_path_release_address(p.c, address)
	p.address = append(binary.LittleEndian.AppendUint64(nil, p.tagIn), unsafe.Slice((*byte)(address), int(n))...)
	return nil
}

// Address implements wire.Path.
func (p *path) Address() []byte { return p.address }

// Connect implements wire.Path.
func (p *path) Connect(address []byte) error {
	if len(address) <= 8 {
		return fmt.Errorf("connect a path: an address of %d bytes, expected more than 8", len(address))
	}
	p.tagOut = binary.LittleEndian.Uint64(address)
	to := C.CBytes(address[8:])
	defer C.free(to)
	return failure("connect a path", C.avg_path_connect(p.c, to))
}

// move moves messages until the path is stopped or the other end is gone.
func (p *path) move() {
	defer close(p.over)
	wait, err := p.events.SyscallConn()
	if err != nil {
		p.err = err
		return
	}
	for {
		switch status := C.avg_path_progress(p.c); status {
		case C.AVG_STOPPED:
			p.err = errors.New("the path was stopped")
			return
		case C.AVG_ENDED:
			wake(p.sent)
			wake(p.received)
		case C.AVG_ARMED:
			if err := wait.Read(readable); err != nil {
				p.err = err
				return
			}
		default:
			p.err = fmt.Errorf("%w: UCX says %q (%d)", errGone, C.GoString(C.avg_ucx_error(status)), int(status))
			return
		}
	}
}

// readable reports whether a descriptor can be read.
func readable(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ended waits until an operation is not busy, and returns how it ended.
func (p *path) ended(op int, changed <-chan struct{}) error {
	o := &p.c.ops[op]
	for atomic.LoadInt32((*int32)(&o.busy)) != 0 {
		select {
		case <-changed:
		case <-p.over:
			return p.err
		}
	}
	return failure("ucx", C.int(o.status))
}

// Send implements wire.Path.
func (p *path) Send(header, payload []byte) error {
	op := sendHeader + p.next
	if err := p.ended(op, p.sent); err != nil { // the one that had it before
		return err
	}
	n, memory := len(header), p.small[p.next]
	b := unsafe.Slice((*byte)(memory), headerBytes+inlineBytes)
	copy(b, header)
	if len(payload) <= inlineBytes {
		n += copy(b[n:], payload)
		payload = nil
	}
	p.next = (p.next + 1) % headers
	C.avg_path_send(p.c, C.int(op), memory, C.size_t(n), C.uint64_t(p.tagOut), 1, nil)
	return p.inChunks(payload, sendChunk, p.sent, func(op int, at unsafe.Pointer, n int, known C.ucp_mem_h) {
		C.avg_path_send(p.c, C.int(op), at, C.size_t(n), C.uint64_t(p.tagOut+1), 0, known)
	}, func(int) error { return nil })
}

// inChunks hands over a payload in chunks, some of them at once, and waits for all.
func (p *path) inChunks(payload []byte, first int, changed <-chan struct{}, hand func(op int, at unsafe.Pointer, n int, known C.ucp_mem_h), done func(op int) error) error {
	if len(payload) == 0 {
		return nil
	}
	known, err := p.know(payload)
	if err != nil {
		return err
	}
	end := func(i int) error {
		err := p.ended(first+i%chunks, changed)
		if err == nil {
			err = done(first + i%chunks)
		}
		return err
	}
	total := (len(payload) + chunkBytes - 1) / chunkBytes
	for i := range total + chunks {
		if ago := i - chunks; ago >= 0 && ago < total {
			if err := end(ago); err != nil {
				return err
			}
		}
		if i < total {
			at := payload[i*chunkBytes:]
			hand(first+i%chunks, unsafe.Pointer(unsafe.SliceData(at)), min(len(at), chunkBytes), known)
		}
	}
	return nil
}

// Next implements wire.Path.
func (p *path) Next(header []byte) error {
	memory := p.small[headers]
	C.avg_path_receive(p.c, receiveHeader, memory, headerBytes+inlineBytes, C.uint64_t(p.tagIn), nil)
	if err := p.ended(receiveHeader, p.received); err != nil {
		return err
	}
	n := int(p.c.ops[receiveHeader].length)
	if n < len(header) {
		return fmt.Errorf("ucx: a message of %d bytes, expected a header of %d", n, len(header))
	}
	p.inline = n - copy(header, unsafe.Slice((*byte)(memory), n))
	return nil
}

// Payload implements wire.Path.
func (p *path) Payload(b []byte, heard func(n int)) error {
	if len(b) <= inlineBytes {
		if p.inline != len(b) {
			return fmt.Errorf("ucx: %d bytes beside a header that says %d", p.inline, len(b))
		}
		copy(b, unsafe.Slice((*byte)(p.small[headers]), headerBytes+p.inline)[headerBytes:])
		return nil
	}
	return p.inChunks(b, receiveChunk, p.received, func(op int, at unsafe.Pointer, n int, known C.ucp_mem_h) {
		C.avg_path_receive(p.c, C.int(op), at, C.size_t(n), C.uint64_t(p.tagIn+1), known)
	}, func(op int) error {
		heard(int(p.c.ops[op].length))
		return nil
	})
}

// Flush implements wire.Path.
func (p *path) Flush() error {
	for i := range headers {
		if err := p.ended(sendHeader+i, p.sent); err != nil {
			return err
		}
	}
	return nil
}

// know has the devices know memory, once, and holds it until the path is closed.
func (p *path) know(b []byte) (C.ucp_mem_h, error) {
	start := unsafe.SliceData(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	if h, known := p.memory[start]; known {
		return h, nil
	}
	p.pins.Pin(start)
	var h C.ucp_mem_h
	if err := failure("register memory", C.avg_ucx_map(p.transport.context, unsafe.Pointer(start), C.size_t(cap(b)), &h)); err != nil {
		return nil, err
	}
	p.memory[start] = h
	return h, nil
}

// Stop implements wire.Path.
func (p *path) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		C.avg_path_stop(p.c)
	}
}

// Close implements wire.Path.
func (p *path) Close() error {
	p.Stop()
	p.loop.Wait()
	var err error
	if p.events != nil {
		err = p.events.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed = true; C.avg_path_close(p.c) != 0 {
		return errors.Join(err, errors.New("close a path: UCX has not ended what it was handed within a second; its memory stays until the process ends"))
	}
	for _, h := range p.memory {
		C.avg_ucx_unmap(p.transport.context, h)
	}
	p.pins.Unpin()
	for _, m := range p.small {
		C.free(m)
	}
	p.transport.open.Add(-1)
	return err
}
