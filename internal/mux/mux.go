// Package mux serves one TCP port with TLS and hands each connection to whoever serves the protocol that was negotiated for it (ALPN).
//
//	m, err := mux.Listen(ctx, ":7700", mux.Config{TLS: identity.ServerTLS(), Log: log})
//	raft := m.Listener(mux.ProtocolRaft)
//	api := m.Listener("h2", "http/1.1")
//	err = m.Close()
package mux

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// The protocols of nodes, beside h2 and http/1.1 of the API.
const (
	ProtocolRaft   = "avgpipe-raft"
	ProtocolGossip = "avgpipe-gossip"
	ProtocolAgent  = "avgpipe-agent"
	ProtocolJoin   = "avgpipe-join"
	ProtocolNode   = "avgpipe-node" // what nodes ask of each other beside their agents
	ProtocolLink   = "avgpipe-link" // between workers, on ports of their own
)

// The protocols of the API.
const (
	protocolHTTP2 = "h2"
	protocolHTTP1 = "http/1.1"
)

// Config configures a Mux.
type Config struct {
	// TLS says who may connect and, by its NextProtos, for what. Required.
	TLS *tls.Config
	// Log is told of failures to accept. Required.
	Log *zap.Logger
	// Handshakes is how many connections may be in their handshake, or wait to be accepted. One more ends the oldest of them, so that those who
	// are silent do not keep others out. Default 256. Each holds at most what TLS lets a handshake have, 256 KiB.
	Handshakes int
	// PerSource is Handshakes for one address. Default 64.
	PerSource int
	// Timeout bounds a handshake together with the wait to be accepted. Default 10 s.
	Timeout time.Duration
	// Versions are those of the protocols between nodes, for what is said of those who have others. Default: Spoken.
	Versions Versions
	// OnRefused is told of each connection that was not handed over, and why. It is called concurrently and does not block. Nil: nobody is.
	OnRefused func(from net.Addr, err error)
}

func (c Config) withDefaults() Config {
	c.Handshakes, c.PerSource = cmp.Or(c.Handshakes, 256), cmp.Or(c.PerSource, 64)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.Versions = c.Versions.Or(Spoken)
	if c.OnRefused == nil {
		c.OnRefused = func(net.Addr, error) {}
	}
	return c
}

// Validate reports the first field that does not fit.
func (c Config) Validate() error {
	switch {
	case c.TLS == nil || c.Log == nil:
		return errors.New("mux: TLS and Log are required")
	case c.Handshakes < 0 || c.PerSource < 0 || c.Timeout < 0:
		return fmt.Errorf("mux: %d handshakes, %d of a source, %v: none may be negative", c.Handshakes, c.PerSource, c.Timeout)
	}
	return nil
}

// Why a connection was not handed over; test with errors.Is.
var (
	ErrProtocol = errors.New("nobody serves that protocol here")
	ErrCrowded  = errors.New("too many handshakes at a time, and this one was the oldest")
)

// Mux is a port. Its methods may be called concurrently.
type Mux struct {
	config   Config
	listener net.Listener
	ctx      context.Context //nolint:containedctx // ends with Close
	end      context.CancelCauseFunc
	running  sync.WaitGroup

	mu        sync.Mutex
	listeners map[string]*listener // by protocol
	pending   []*pending           // the oldest first
}

// pending is a connection that was not handed over yet.
type pending struct {
	source string
	end    context.CancelCauseFunc
}

// Listen opens a port. ctx is only for that. The caller closes the Mux.
func Listen(ctx context.Context, address string, c Config) (*Mux, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	var open net.ListenConfig
	l, err := open.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for nodes and clients on %s: %w", address, err)
	}
	m := &Mux{config: c, listener: l, listeners: map[string]*listener{}}
	m.ctx, m.end = context.WithCancelCause(context.WithoutCancel(ctx))
	m.running.Go(m.accept)
	return m, nil
}

// Addr is the address of the port.
func (m *Mux) Addr() net.Addr { return m.listener.Addr() }

// Close closes the port and its listeners, and the connections that no listener has accepted. Those that one has are the caller's.
func (m *Mux) Close() error {
	m.end(net.ErrClosed)
	err := m.listener.Close()
	m.running.Wait()
	m.mu.Lock()
	all := m.listeners
	m.listeners = map[string]*listener{}
	m.mu.Unlock()
	for _, l := range all {
		_ = l.Close() // it never fails
	}
	if errors.Is(err, net.ErrClosed) { // twice
		return nil
	}
	return err
}

// Conn is a connection for a protocol of nodes. A server of HTTP takes it for one without TLS, and so does not look for its protocol among
// those of HTTP.
type Conn struct{ *tls.Conn }

// Listener returns what accepts the connections of some protocols, in all versions that TLS negotiates, after their handshake: each is a *Conn, or a *tls.Conn where the protocol is one
// of HTTP. One that asks for no protocol counts as HTTP/1.1. Closing it leaves the Mux as it is. A protocol has one listener at a time: the newest.
func (m *Mux) Listener(protocols ...string) net.Listener {
	l := &listener{mux: m, protocols: protocols, accepted: make(chan net.Conn), closed: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range protocols {
		m.listeners[p] = l
	}
	return l
}

// accept takes connections until Close.
func (m *Mux) accept() {
	pause := time.Duration(0)
	for {
		c, err := m.listener.Accept()
		switch {
		case m.ctx.Err() != nil:
			if err == nil {
				_ = c.Close() // nobody has it
			}
			return
		case err != nil: // as where no descriptor is left
			m.config.Log.Warn("accept a connection", zap.Error(err))
			pause = min(max(2*pause, 10*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-m.ctx.Done():
			}
			continue
		}
		pause = 0
		m.running.Go(func() { m.handOver(c) })
	}
}

// enter counts a connection that is not handed over yet, and ends the oldest one where there are too many.
func (m *Mux) enter(source string) (context.Context, *pending) {
	ctx, end := context.WithCancelCause(m.ctx)
	p := &pending{source, end}
	m.mu.Lock()
	defer m.mu.Unlock()
	same, oldest := 0, 0
	for i, q := range slices.Backward(m.pending) {
		if q.source == source {
			same, oldest = same+1, i
		}
	}
	if same < m.config.PerSource {
		oldest = 0
	}
	if same >= m.config.PerSource || len(m.pending) >= m.config.Handshakes {
		m.pending[oldest].end(ErrCrowded)
		m.pending = slices.Delete(m.pending, oldest, oldest+1)
	}
	m.pending = append(m.pending, p)
	return ctx, p
}

// leave ends the counting.
func (m *Mux) leave(p *pending) {
	p.end(nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.pending, p); i >= 0 {
		m.pending = slices.Delete(m.pending, i, i+1)
	}
}

// handOver makes the handshake of a connection and gives it to the listener of its protocol.
func (m *Mux) handOver(c net.Conn) {
	from := c.RemoteAddr()
	source, _, err := net.SplitHostPort(from.String())
	if err != nil {
		source = from.String()
	}
	counted, p := m.enter(source)
	defer m.leave(p)
	ctx, cancel := context.WithTimeout(counted, m.config.Timeout)
	defer cancel()
	var offered []string
	if err = m.give(ctx, tls.Server(c, m.noting(&offered))); err == nil {
		return
	}
	if foreign := m.config.Versions.foreign(offered); foreign != nil {
		err = fmt.Errorf("%w: %w", foreign, err)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	_ = c.Close() // it is refused
	if m.ctx.Err() == nil {
		m.config.OnRefused(from, err)
	}
}

// noting is the configuration of TLS for one connection, which notes the protocols that are offered.
func (m *Mux) noting(offered *[]string) *tls.Config {
	config := m.config.TLS.Clone()
	choose := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		*offered = hello.SupportedProtos
		if choose == nil {
			return nil, nil //nolint:nilnil // as documented of tls.Config
		}
		return choose(hello)
	}
	return config
}

// give makes the handshake, and waits until somebody accepts the connection.
func (m *Mux) give(ctx context.Context, c *tls.Conn) error {
	if err := c.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	protocol, _ := Protocol(cmp.Or(c.ConnectionState().NegotiatedProtocol, protocolHTTP1))
	m.mu.Lock()
	l := m.listeners[protocol]
	m.mu.Unlock()
	if l == nil {
		return fmt.Errorf("protocol %q: %w", protocol, ErrProtocol)
	}
	var given net.Conn = c
	if protocol != protocolHTTP2 && protocol != protocolHTTP1 {
		given = &Conn{c}
	}
	select {
	case l.accepted <- given:
		return nil
	case <-l.closed:
		return fmt.Errorf("protocol %q: %w", protocol, ErrProtocol)
	case <-ctx.Done():
		return fmt.Errorf("protocol %q: the connection was not accepted in time", protocol)
	}
}

// listener accepts the connections of some protocols.
type listener struct {
	mux       *Mux
	protocols []string
	accepted  chan net.Conn
	once      sync.Once
	closed    chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
	case <-l.mux.ctx.Done():
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.mux.Addr() }

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.mux.mu.Lock()
		defer l.mux.mu.Unlock()
		for _, p := range l.protocols {
			if l.mux.listeners[p] == l {
				delete(l.mux.listeners, p)
			}
		}
		close(l.closed)
	})
	return nil
}
