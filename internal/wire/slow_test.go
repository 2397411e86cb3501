package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Times here are those of synctest's clock, over pipes in place of sockets: a pipe holds nothing, as a socket whose buffers are full.

// piped is played over a pipe, with TLS.
func piped(t *testing.T, s Spec) (*tcpEnd, player) {
	t.Helper()
	conn, raw := net.Pipe()
	return playedOver(t, conn, raw, s, true)
}

// trickle writes a byte a second while it is slow.
type trickle struct {
	net.Conn
	slow atomic.Bool
}

func (c *trickle) Write(b []byte) (int, error) {
	if !c.slow.Load() {
		return c.Conn.Write(b)
	}
	for i := range b {
		time.Sleep(time.Second)
		if _, err := c.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

// within fails unless f returns in time.
func within(t *testing.T, bound time.Duration, what string, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if took := time.Since(start); took > bound {
		t.Errorf("%s took %v, more than %v", what, took, bound)
	}
}

func closed(t *testing.T, e *tcpEnd, cause error) {
	t.Helper()
	if err := e.Close(cause); err != nil {
		t.Error(err)
	}
}

// fill sends until nothing more fits.
func fill(t *testing.T, e *tcpEnd) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("the test has waited"))
	defer cancel()
	for {
		switch err := e.Send(ctx, e.NewFrame(toUpper, 8)); {
		case err == nil:
		case strings.Contains(err.Error(), "send activation of pipeline 0, stage 0 -> 1") && strings.Contains(err.Error(), "the test has waited"):
			return
		default:
			t.Fatalf("Send to an end that does not read: %v", err)
		}
	}
}

func TestAnEndThatNeverReadsHoldsNobody(t *testing.T) {
	spec := Spec{Generation: 1, Depth: 2, MaxBytes: 8}
	t.Run("a context ends Send, and a cause ends the link", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, _ := piped(t, spec)
			fill(t, e)
			within(t, 2*causeTimeout, "Close with a cause", func() { closed(t, e, errors.New("test over")) })
		})
	})
	t.Run("an end in order is bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, _ := piped(t, spec)
			fill(t, e)
			within(t, orderTimeout, "Close in order", func() { closed(t, e, nil) })
		})
	})
	t.Run("a watch ends the link", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := spec
			s.Watch = &Watch{Peer: "node b"}
			e, _ := piped(t, s)
			fill(t, e)
			within(t, 5*time.Second, "the watch", func() {
				_, err := e.Receive(t.Context())
				if err == nil || !strings.Contains(err.Error(), "stages 0 and 1 to node b: nothing has come for 3") {
					t.Errorf("%v, want the silence of node b", err)
				}
				closed(t, e, nil)
			})
		})
	})
}

func TestASlowReaderGetsWholeFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, peer := piped(t, Spec{Generation: 1, Depth: 2, MaxBytes: 8})
		f := e.NewFrame(toUpper, 8)
		copy(f.Payload, "12345678")
		if err := e.Send(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for b := make([]byte, 1); len(got) < headerBytes+8; time.Sleep(time.Second) {
			n, err := peer.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b[:n]...)
		}
		if want := string(encoded(toUpper, 8)) + "12345678"; string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
		closed(t, e, errors.New("test over"))
	})
}

// TestASlowWriter has another end that writes a byte a second of TLS' records: a frame arrives whole or not at all.
func TestASlowWriter(t *testing.T) {
	frame := append(encoded(toUpper, 8), "12345678"...)
	start := func(t *testing.T, s Spec) *tcpEnd {
		conn, raw := net.Pipe()
		slow := &trickle{Conn: raw}
		e, peer := playedOver(t, conn, slow, s, true)
		slow.slow.Store(true)
		var goroutines sync.WaitGroup
		goroutines.Go(func() { _, _ = io.Copy(io.Discard, raw) })
		goroutines.Go(func() { _, _ = peer.Write(frame) })
		t.Cleanup(func() { raw.Close(); goroutines.Wait() })
		return e
	}
	spec := Spec{Generation: 1, Depth: 1, MaxBytes: 8}
	t.Run("arrives whole", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, spec)
			f, err := e.Receive(t.Context())
			if err != nil || string(f.Payload) != "12345678" {
				t.Errorf("got %q, %v", f.Payload, err)
			}
			closed(t, e, errors.New("test over"))
		})
	})
	t.Run("a context ends Receive", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, spec)
			ctx, cancel := context.WithTimeoutCause(t.Context(), 40*time.Second, errors.New("the test has waited"))
			defer cancel()
			if f, err := e.Receive(ctx); err == nil || !strings.Contains(err.Error(), "the test has waited") {
				t.Errorf("%v, %v: want the context's cause", f.Header, err)
			}
			within(t, 2*causeTimeout, "Close with a cause", func() { closed(t, e, errors.New("test over")) })
		})
	})
	t.Run("a watch ends the link", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := spec
			s.Watch = &Watch{Peer: "node b", Every: 500 * time.Millisecond}
			e := start(t, s)
			if f, err := e.Receive(t.Context()); err == nil || !strings.Contains(err.Error(), "to node b: nothing has come for 3") {
				t.Errorf("%v, %v: want the silence of node b", f.Header, err)
			}
			closed(t, e, nil)
		})
	})
}
