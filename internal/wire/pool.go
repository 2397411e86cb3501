package wire

import (
	"sync"
	"unsafe"
)

// alignment of every payload, in bytes: a cache line, and the widest vector register.
const alignment = 64

// pool keeps the payloads of one link for reuse. A link carries a handful of sizes, so it keeps one list per size and
// never holds more buffers than were once in flight.
type pool struct {
	mu   sync.Mutex
	free map[int][][]byte // by capacity
	give func([]byte)     // put, as a value made once
}

func newPool() *pool {
	p := &pool{free: make(map[int][][]byte)}
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
		return aligned(size)[:n]
	}
	b := list[len(list)-1]
	p.free[size] = list[:len(list)-1]
	return b[:n]
}

func (p *pool) put(b []byte) {
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

// Buffer returns n zeroed bytes, aligned as payloads are: for boundary buffers that no link carries.
func Buffer(n int) []byte {
	return aligned((n + alignment - 1) &^ (alignment - 1))[:n]
}
