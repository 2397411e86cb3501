// Package mux serves several protocols on one TLS port: which one a connection is for is negotiated (ALPN).
//
//	m, err := mux.Listen(ctx, "0.0.0.0:7946", mux.Config{TLS: identity.ServerTLS(), Log: log})
//	raft := m.Listener(mux.ProtocolRaft)
//	api := m.Listener("h2", "http/1.1")
//	err = m.Close()
package mux

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
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
)

// Bounds of connections whose protocol is not known yet.
const (
	handshakeTimeout = 10 * time.Second
	mostHandshakes   = 256
)

// Config configures a Mux.
type Config struct {
	// TLS says who may connect and, by its NextProtos, for what. Required.
	TLS *tls.Config
	// Log is told of failures to accept. Required.
	Log *zap.Logger
	// OnRefused is told who was refused and why. It is called concurrently. Nil: nobody is.
	OnRefused func(from net.Addr, err error)
}

// Mux accepts connections. Its methods may be called concurrently.
type Mux struct {
	config   Config
	listener net.Listener
	ctx      context.Context //nolint:containedctx // ends with the Mux
	end      context.CancelFunc
	tasks    sync.WaitGroup
	busy     chan struct{}

	mu        sync.Mutex
	listeners map[string]*listener
}

// Listen listens on an address, host:port. The caller closes the Mux.
func Listen(ctx context.Context, address string, c Config) (*Mux, error) {
	if c.TLS == nil || c.Log == nil {
		return nil, errors.New("mux: TLS and Log are required")
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for nodes and clients on %s: %w", address, err)
	}
	m := &Mux{config: c, listener: l, busy: make(chan struct{}, mostHandshakes), listeners: map[string]*listener{}}
	m.ctx, m.end = context.WithCancel(context.WithoutCancel(ctx))
	m.tasks.Go(m.accept)
	return m, nil
}

// Addr is where it listens.
func (m *Mux) Addr() net.Addr { return m.listener.Addr() }

// Conn is a connection for a protocol of nodes. A server of HTTP takes it for one without TLS, and so does not look for its protocol among
// those of HTTP.
type Conn struct{ *tls.Conn }

// Listener returns a listener of the connections that are for some protocols: each is a *Conn, or a *tls.Conn where the protocol is one of
// HTTP. It is to be called once for each protocol; connections for those that nobody listens for are closed.
func (m *Mux) Listener(protocols ...string) net.Listener {
	l := &listener{mux: m, conns: make(chan net.Conn), closed: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range protocols {
		m.listeners[p] = l
	}
	return l
}

// Close ends all listeners, and connections that no listener has given out. It returns when nothing runs any more.
func (m *Mux) Close() error {
	m.end()
	err := m.listener.Close()
	m.tasks.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// accept accepts connections until Close.
func (m *Mux) accept() {
	for {
		c, err := m.listener.Accept()
		if m.ctx.Err() != nil {
			if err == nil {
				_ = c.Close() // nobody asked for it
			}
			return
		}
		if err != nil { // too many open files, as a rule
			m.config.Log.Warn("accept a connection", zap.Error(err))
			select {
			case <-time.After(100 * time.Millisecond):
			case <-m.ctx.Done():
			}
			continue
		}
		select {
		case m.busy <- struct{}{}:
			m.tasks.Go(func() {
				defer func() { <-m.busy }()
				m.serve(c)
			})
		default:
			_ = c.Close() // whoever it is may try again
		}
	}
}

// serve has TLS check who connects, and gives the connection to the listener of its protocol.
func (m *Mux) serve(c net.Conn) {
	ctx, cancel := context.WithTimeout(m.ctx, handshakeTimeout)
	defer cancel()
	secure := tls.Server(c, m.config.TLS)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = c.Close() // the error says it
		if m.config.OnRefused != nil && m.ctx.Err() == nil {
			m.config.OnRefused(c.RemoteAddr(), err)
		}
		return
	}
	m.mu.Lock()
	l := m.listeners[secure.ConnectionState().NegotiatedProtocol]
	m.mu.Unlock()
	if l == nil {
		_ = secure.Close() // nobody listens for it
		return
	}
	var given net.Conn = secure
	if p := secure.ConnectionState().NegotiatedProtocol; p != "h2" && p != "http/1.1" {
		given = &Conn{secure}
	}
	select {
	case l.conns <- given:
	case <-l.closed:
		_ = secure.Close() // nobody asks for it
	case <-ctx.Done():
		_ = secure.Close() // whoever accepts is too slow
	}
}

// listener gives out the connections of some protocols.
type listener struct {
	mux    *Mux
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
	case <-l.mux.ctx.Done():
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener. The port stays open.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.mux.Addr() }
