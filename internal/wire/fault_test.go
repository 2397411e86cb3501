package wire

import (
	"net"
	"strings"
	"testing"
)

// TestWhatIsNoFrameEndsTheLink has a peer over TCP that sends something else, or breaks off.
func TestWhatIsNoFrameEndsTheLink(t *testing.T) {
	good := Header{Kind: Activation, Generation: 1, To: 1}
	for name, c := range map[string]struct {
		sends []byte
		reset bool
		want  string
	}{
		"garbage":              {sends: []byte(strings.Repeat("garbage ", headerBytes)), want: "bad frame header"},
		"a length too long":    {sends: encoded(good, 1<<20), want: "at most 1024"},
		"an older generation":  {sends: encoded(Header{Kind: Activation, To: 1}, 8), want: "generation 0"},
		"a handshake again":    {sends: encoded(Header{Kind: opening, Generation: 1, From: 3, To: 4}, 8), want: "does not belong"},
		"a reset in mid-frame": {sends: append(encoded(good, 1024), 1, 2, 3), reset: true, want: "receive on the training link"},
		"an end in mid-frame":  {sends: append(encoded(good, 1024), 1, 2, 3), want: "payload of activation"},
		"an end":               {want: "its process ended"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			peer, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			e := newTCPEnd(conn, Link{Purpose: Training, Lower: 0, Upper: 1}, nil, Spec{Generation: 1, Depth: 1, MaxBytes: 1024, Watch: &Watch{Peer: "node b"}})
			if _, err := peer.Write(c.sends); err != nil {
				t.Error(err)
			}
			if c.reset {
				_ = peer.(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // it is one
			}
			peer.Close()
			if _, err = e.Receive(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "node b") {
				t.Errorf("%v, want %q of node b", err, c.want)
			}
			if err := e.Close(nil); err != nil {
				t.Error(err)
			}
		})
	}
}
