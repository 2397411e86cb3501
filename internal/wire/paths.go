package wire

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Path carries the frames of a link beside its connection, in order. Send and Flush are called from one goroutine at a time, Next and Payload from another.
// After an error it is of no use any more.
type Path interface {
	// Address is where the other end finds this one.
	Address() []byte
	// Connect connects this end to the address of the other. It does not wait for it.
	Connect(address []byte) error
	// Send hands over a frame: its header, of which it takes a copy, and its payload, which after an error may still be read. The payload lies in memory that
	// is used again for others. It blocks while the other end asks for no more frames.
	Send(header, payload []byte) error
	// Flush returns when the other end has asked for all frames.
	Flush() error
	// Next waits for the next frame and writes its header to header.
	Next(header []byte) error
	// Payload writes the payload of this frame to b, whose length the header has said. heard is told of bytes as they come. After an error b may still be
	// written to.
	Payload(b []byte, heard func(n int)) error
	// Stop has all calls return, now and later. It may be called at any time, also after Close.
	Stop()
	// Close stops the path and frees what it has. No other call is under way.
	Close() error
}

// Transport opens paths of one kind. It may be used concurrently.
type Transport interface {
	// Name names it to the other end, and to people.
	Name() string
	Open() (Path, error)
}

// Paths chooses what carries the frames of links, for all links of a process.
type Paths struct {
	// Transport opens paths beside connections. Nil: there is none.
	Transport Transport
	// Missing says why there is none, where one was wanted.
	Missing string
	// Always chooses the path wherever there is one, without a measurement: for tests and benchmarks of a transport.
	Always bool

	once  sync.Once
	turn  chan struct{} // of the link that is measured: two at once would share the network
	found sync.Map      // way -> Choice: what was measured
}

// way is what a measurement is of.
type way struct {
	address string
	bytes   int
}

// Choice is what carries the frames of a link, and why.
type Choice struct {
	Over   string `json:"over"`          // "tcp", "tls", or the name of a transport
	Reason string `json:"why,omitempty"` // empty: there was nothing to choose from
	// Bytes is the size of a message that was measured, with its answer. Connection and Path are how long it took, at best.
	Bytes      int           `json:"bytes,omitempty"`
	Connection time.Duration `json:"connection,omitempty"`
	Path       time.Duration `json:"path,omitempty"`
}

// enough is by how much a path has to be faster than the connection, which encrypts and needs nothing else: a tenth.
const enough = 0.9

// decide chooses by what was measured.
func (c Choice) decide(connection, path string) Choice {
	c.Over = connection
	if float64(c.Path) < enough*float64(c.Connection) {
		c.Over = path
	}
	c.Reason = fmt.Sprintf("%d bytes and their answer took %v over %s and %v over %s", c.Bytes,
		c.Path.Round(time.Microsecond), path, c.Connection.Round(time.Microsecond), connection)
	return c
}

// name is that of the transport; empty: there is none.
func (p *Paths) name() string {
	if p == nil || p.Transport == nil {
		return ""
	}
	return p.Transport.Name()
}

// without is the choice where the other end, or this one, has no path.
func (p *Paths) without(connection string) Choice {
	c := Choice{Over: connection}
	switch {
	case p == nil:
	case p.Transport == nil:
		c.Reason = p.Missing
	default:
		c.Reason = "the other node does not use " + p.name()
	}
	return c
}

// await waits for its turn to measure. The caller gives it back.
func (p *Paths) await(ctx context.Context) (giveBack func(), err error) {
	p.once.Do(func() { p.turn = make(chan struct{}, 1) })
	select {
	case p.turn <- struct{}{}:
		return func() { <-p.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// opened is a connection after its handshake, and what carries the frames beside it.
type opened struct {
	conn   net.Conn
	path   Path // nil: the connection does
	choice Choice
	timed  bool // the other end takes headers that say when their frame was sent
}

// give frees it.
func (o opened) give() {
	o.conn.Close()
	if o.path != nil {
		_ = o.path.Close() // it carried nothing
	}
}
