package mux_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/mux"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serverTLS has a certificate that nobody verifies.
func serverTLS(t *testing.T, protocols ...string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: protocols}
}

// open opens a port for two protocols of ours and those of HTTP.
func open(t *testing.T, c mux.Config) (*mux.Mux, chan error) {
	t.Helper()
	refused := make(chan error, 100)
	c.TLS = serverTLS(t, mux.ProtocolRaft, mux.ProtocolGossip, "h2", "http/1.1")
	c.OnRefused, c.Log = func(_ net.Addr, err error) { refused <- err }, zap.NewNop()
	m, err := mux.Listen(t.Context(), "127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m, refused
}

// dial connects for a protocol; with none, without ALPN.
func dial(t *testing.T, m *mux.Mux, protocols ...string) (*tls.Conn, error) {
	t.Helper()
	c, err := tls.Dial("tcp", m.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: protocols})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// accepted takes one connection.
func accepted(t *testing.T, l net.Listener) *tls.Conn {
	t.Helper()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if inner, ok := c.(*mux.Conn); ok {
		return inner.Conn
	}
	return c.(*tls.Conn)
}

// silent connects and says nothing. It returns once the mux has taken the connection, as far as one can see.
func silent(t *testing.T, m *mux.Mux) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", m.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestConnectionsGoWhereTheirProtocolIsServed.
func TestConnectionsGoWhereTheirProtocolIsServed(t *testing.T) {
	m, refused := open(t, mux.Config{})
	raft, web := m.Listener(mux.ProtocolRaft), m.Listener("h2", "http/1.1")
	for _, c := range []struct {
		at   net.Listener
		asks []string
		want string
	}{{raft, []string{mux.ProtocolRaft}, mux.ProtocolRaft}, {web, []string{"h2", "http/1.1"}, "h2"}, {web, []string{"http/1.1"}, "http/1.1"}, {web, nil, ""}} {
		if _, err := dial(t, m, c.asks...); err != nil {
			t.Fatal(err)
		}
		if got := accepted(t, c.at).ConnectionState().NegotiatedProtocol; got != c.want {
			t.Errorf("%q: negotiated %q", c.asks, got)
		}
	}
	if _, err := dial(t, m, "smtp"); err == nil {
		t.Error("a protocol that nobody knows")
	}
	if r := <-refused; r == nil {
		t.Errorf("refused: %v", r)
	}
	if _, err := dial(t, m, mux.ProtocolGossip); err != nil {
		t.Fatal(err)
	}
	if r := <-refused; !errors.Is(r, mux.ErrProtocol) {
		t.Errorf("refused: %v", r)
	}
}

// TestSilentClientsDelayNobody: they are ended when there are too many, the oldest first.
func TestSilentClientsDelayNobody(t *testing.T) {
	m, refused := open(t, mux.Config{Handshakes: 4, PerSource: 3, Timeout: time.Hour})
	raft := m.Listener(mux.ProtocolRaft)
	for range 3 {
		silent(t, m)
	}
	for range 5 {
		c, err := dial(t, m, mux.ProtocolRaft)
		if err != nil {
			t.Fatal(err)
		}
		s := accepted(t, raft)
		if _, err := s.Write([]byte{7}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if r := <-refused; !errors.Is(r, mux.ErrCrowded) {
		t.Errorf("refused: %v", r)
	}
}

// TestWhoIsSilentForTooLongIsRefused, and who is not accepted.
func TestWhoIsSilentForTooLongIsRefused(t *testing.T) {
	m, refused := open(t, mux.Config{Timeout: 50 * time.Millisecond})
	m.Listener(mux.ProtocolRaft) // nobody accepts
	for range 2 {
		silent(t, m)
		if r := <-refused; r == nil {
			t.Errorf("refused: %v", r)
		}
		_, _ = dial(t, m, mux.ProtocolRaft) // its handshake may take too long as well
		if r := <-refused; r == nil {
			t.Errorf("refused: %v", r)
		}
	}
}

// TestCloseJoinsEverything that is in its handshake or waits, and ends the listeners.
func TestCloseJoinsEverything(t *testing.T) {
	m, _ := open(t, mux.Config{Timeout: time.Hour})
	raft, gossip := m.Listener(mux.ProtocolRaft), m.Listener(mux.ProtocolGossip)
	silent(t, m)
	waiting, err := dial(t, m, mux.ProtocolGossip)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := raft.Accept()
		ended <- err
	}()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
	if _, err := waiting.Read(make([]byte, 1)); err == nil {
		t.Error("the connection that waited is open")
	}
	if _, err := gossip.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept afterwards: %v", err)
	}
	if err := errors.Join(gossip.Close(), gossip.Close()); err != nil {
		t.Error(err)
	}
	if _, err := m.Listener(mux.ProtocolRaft).Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a listener of a closed port: %v", err)
	}
}

// TestHTTP2IsServed by package net/http on a listener.
func TestHTTP2IsServed(t *testing.T) {
	m, _ := open(t, mux.Config{})
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })}
	ended, listener := make(chan error), m.Listener("h2", "http/1.1")
	go func() { ended <- s.Serve(listener) }()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}}
	answer, err := client.Get("https://" + m.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.Body.Close() != nil || string(text) != "HTTP/2.0" {
		t.Errorf("%s, %v", text, err)
	}
	client.CloseIdleConnections()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// TestListenRefuses what cannot be opened.
func TestListenRefuses(t *testing.T) {
	if _, err := mux.Listen(t.Context(), "127.0.0.1:0", mux.Config{}); err == nil {
		t.Error("without TLS")
	}
	m, _ := open(t, mux.Config{})
	if _, err := mux.Listen(t.Context(), m.Addr().String(), mux.Config{TLS: &tls.Config{}, Log: zap.NewNop()}); err == nil {
		t.Error("a port that is taken")
	}
}
