package wire_test

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/avgpipe/avgpipe/internal/wire"
)

// countingListener counts what is written on the connections that it accepts.
type countingListener struct {
	net.Listener
	writes atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, &l.writes}, err
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

func TestFramesFillTheRecordsOfTLS(t *testing.T) {
	config := wire.MutualTLS(t)
	c := wire.Config{TLS: always(config)}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counting := &countingListener{Listener: inner}
	const header, record = 48, 16 << 10
	l := wire.Serve(t.Context(), counting, 1, c)
	t.Cleanup(func() { l.Close() })
	lower, upper := connectTo(t, l, wire.Spec{Generation: 1, Depth: 1, MaxBytes: 1 << 20}, c)
	for _, size := range []int{0, 1, record - header, record - header + 1, 100 << 10} {
		before := counting.writes.Load()
		f := upper.NewFrame(wire.Header{Kind: wire.Gradient, Generation: 1, Pipeline: 1, From: 1}, size)
		if err := upper.Send(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		f, err := lower.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Payload) != size {
			t.Errorf("a frame of %d bytes has arrived with %d", size, len(f.Payload))
		}
		f.Release()
		if got, want := counting.writes.Load()-before, int64((header+size+record-1)/record); got != want {
			t.Errorf("a frame of %d bytes took %d writes, want %d", size, got, want)
		}
	}
}
