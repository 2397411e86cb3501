package wiretest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/avgpipe/avgpipe/internal/wire"
)

// Memory is a transport inside one process. What its fields say is set before it is used.
type Memory struct {
	// Opens is what Open returns, unless it is nil, and Connects what Connect does.
	Opens, Connects error
	// Deaf loses all frames from the first one on, as a network does that lets only connections of TCP pass.
	Deaf bool

	mu    sync.Mutex
	paths []*MemoryPath
}

// Name implements wire.Transport.
func (*Memory) Name() string { return "memory" }

// Open implements wire.Transport.
func (m *Memory) Open() (wire.Path, error) {
	if m.Opens != nil {
		return nil, m.Opens
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &MemoryPath{
		transport: m, address: strconv.Itoa(len(m.paths)), frames: make(chan memoryFrame, 8), free: make(chan []byte, 8),
		stopped: make(chan struct{}), broken: make(chan struct{}), deaf: make(chan struct{}),
	}
	if m.Deaf {
		close(p.deaf)
	}
	m.paths = append(m.paths, p)
	return p, nil
}

// Paths are those that were opened.
func (m *Memory) Paths() []*MemoryPath {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paths
}

// Closed reports a path that was not closed.
func (m *Memory) Closed() error {
	for _, p := range m.Paths() {
		if !p.isClosed() {
			return fmt.Errorf("path %s of %d was not closed", p.address, len(m.paths))
		}
	}
	return nil
}

type memoryFrame struct{ header, payload []byte }

// MemoryPath is a path of a Memory.
type MemoryPath struct {
	transport *Memory
	address   string
	to        *MemoryPath
	frames    chan memoryFrame // for this end
	payload   []byte           // of the frame whose header was read last
	free      chan []byte      // payloads that nobody reads
	stop      sync.Once
	stopped   chan struct{}
	breaks    sync.Once
	broken    chan struct{}
	deafens   sync.Once
	deaf      chan struct{}

	mu     sync.Mutex
	closed bool
}

// Address implements wire.Path.
func (p *MemoryPath) Address() []byte { return []byte(p.address) }

// Connect implements wire.Path.
func (p *MemoryPath) Connect(address []byte) error {
	i, err := strconv.Atoi(string(address))
	if err != nil || p.transport.Connects != nil {
		return errors.Join(err, p.transport.Connects)
	}
	p.to = p.transport.Paths()[i]
	return nil
}

// Break has the calls of this end fail.
func (p *MemoryPath) Break() { p.breaks.Do(func() { close(p.broken) }) }

// Deafen loses all frames that are sent from here from now on.
func (p *MemoryPath) Deafen() { p.deafens.Do(func() { close(p.deaf) }) }

var (
	errStopped = errors.New("the path was stopped")
	errBroken  = errors.New("the path has melted")
)

// Send implements wire.Path.
func (p *MemoryPath) Send(header, payload []byte) error {
	select {
	case <-p.deaf:
		return nil
	default:
	}
	select {
	case p.to.frames <- memoryFrame{slices.Clone(header), p.to.copied(payload)}:
		return nil
	case <-p.stopped:
		return errStopped
	case <-p.broken:
		return errBroken
	}
}

// copied copies a payload to memory that is used again.
func (p *MemoryPath) copied(payload []byte) []byte {
	select {
	case b := <-p.free:
		return append(b[:0], payload...)
	default:
		return slices.Clone(payload)
	}
}

// Inject has this end receive a frame that nobody sent.
func (p *MemoryPath) Inject(header, payload []byte) { p.frames <- memoryFrame{header, payload} }

// Flush implements wire.Path.
func (*MemoryPath) Flush() error { return nil }

// Next implements wire.Path.
func (p *MemoryPath) Next(header []byte) error {
	select {
	case f := <-p.frames:
		copy(header, f.header)
		p.payload = f.payload
		return nil
	case <-p.stopped:
		return errStopped
	case <-p.broken:
		return errBroken
	}
}

// Payload implements wire.Path.
func (p *MemoryPath) Payload(b []byte, heard func(n int)) error {
	if len(b) != len(p.payload) {
		return fmt.Errorf("%d bytes beside a header that says %d", len(p.payload), len(b))
	}
	heard(copy(b, p.payload))
	select {
	case p.free <- p.payload:
	default:
	}
	return nil
}

// Stop implements wire.Path.
func (p *MemoryPath) Stop() { p.stop.Do(func() { close(p.stopped) }) }

// Close implements wire.Path.
func (p *MemoryPath) Close() error {
	p.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("the path was closed before")
	}
	p.closed = true
	return nil
}

func (p *MemoryPath) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}
