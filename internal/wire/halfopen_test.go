package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections a test makes.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// halfOpen are the ways not to complete a handshake: each does its part and returns.
var halfOpen = map[string]func(raw net.Conn, config *tls.Config, role func(net.Conn, *tls.Config) *tls.Conn){
	"says nothing": func(net.Conn, *tls.Config, func(net.Conn, *tls.Config) *tls.Conn) {},
	"stops in TLS": func(raw net.Conn, _ *tls.Config, _ func(net.Conn, *tls.Config) *tls.Conn) {
		_, _ = raw.Write([]byte{22, 3, 1, 2, 0, 1, 0})
	},
	"says a byte a second": func(raw net.Conn, config *tls.Config, role func(net.Conn, *tls.Config) *tls.Conn) {
		slow := &trickle{Conn: raw}
		slow.slow.Store(true)
		_ = role(slow, config).Handshake()
	},
	"says nothing after TLS": func(raw net.Conn, config *tls.Config, role func(net.Conn, *tls.Config) *tls.Conn) {
		_ = role(raw, config).Handshake()
	},
	"stops in its hello": func(raw net.Conn, config *tls.Config, role func(net.Conn, *tls.Config) *tls.Conn) {
		_, _ = role(raw, config).Write(encoded(testLink.header(opening, 1), 20)[:40])
	},
}

// TestAListenerLetsGoOfHalfOpenConnections has dialling ends that never complete their handshake.
func TestAListenerLetsGoOfHalfOpenConnections(t *testing.T) {
	for name, dial := range halfOpen {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := mutualTLS(t)
				inner := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
				l := Serve(t.Context(), inner, 1, Config{TLS: func() (*tls.Config, error) { return config, nil }})
				conn, raw := net.Pipe()
				inner.conns <- conn
				within(t, handshakeTimeout+5*time.Second, name, func() { // 5 s: TLS' notice of the end, that nobody reads
					dial(raw, config, tls.Client)
					_, _ = io.Copy(io.Discard, raw) // until the listening end closes
				})
				raw.Close()
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestADialLetsGoOfHalfOpenConnections has a listening end that never completes its handshake. The error names what was awaited.
func TestADialLetsGoOfHalfOpenConnections(t *testing.T) {
	cause := errors.New("the job was cancelled")
	for name, answer := range halfOpen {
		for ends, after := range map[string]time.Duration{"by its bound": time.Hour, "by its context": 3 * time.Second} {
			t.Run(name+", ended "+ends, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					config := mutualTLS(t)
					conn, raw := net.Pipe()
					var played sync.WaitGroup
					played.Go(func() {
						answer(raw, config, tls.Server)
						_, _ = io.Copy(io.Discard, raw)
					})
					ctx, cancel := context.WithTimeoutCause(t.Context(), after, cause)
					defer cancel()
					within(t, min(handshakeTimeout, after), name, func() {
						_, err := greet(ctx, tls.Client(conn, config), "", testLink, Spec{Generation: 1}, Config{})
						if err == nil || errors.Is(err, cause) != (ctx.Err() != nil) {
							t.Errorf("greet: %v", err)
						}
					})
					raw.Close()
					conn.Close()
					played.Wait()
				})
			})
		}
	}
}

// TestDialSaysWhatItWaitedFor has an address whose process never says anything.
func TestDialSaysWhatItWaitedFor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cause := errors.New("the job was cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	var played sync.WaitGroup
	played.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1)) // the hello has begun
		cancel(cause)
		_, _ = io.Copy(io.Discard, conn)
	})
	config := mutualTLS(t)
	_, err = Dial(ctx, l.Addr().String(), testLink, Spec{Generation: 1, Depth: 1, MaxBytes: 8}, Config{TLS: func() (*tls.Config, error) { return config, nil }})
	want := "dial " + l.Addr().String() + " for the training link of pipeline 0, stages 0 and 1"
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q and its cause", err, want)
	}
	played.Wait()
}
