package wire

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// player is the other end of a link, as a test plays it: raw is the connection, and Conn is that or TLS over it.
type player struct {
	net.Conn
	raw net.Conn
}

// breakOff ends a connection as the kernel does for a process that is killed: without a close frame and without TLS' notice of the end.
func (p player) breakOff() { p.raw.Close() }

// reset ends it as the kernel does for a process that is killed before it has read all that came.
func (p player) reset() {
	_ = p.raw.(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // it is one
	p.raw.Close()
}

// end ends it in order, as far as the layer below the frames knows.
func (p player) end() { p.Close() }

// played makes an end of a link over the loopback, and its other end.
func played(t *testing.T, s Spec, secured bool) (*tcpEnd, player) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return playedOver(t, conn, raw, s, secured)
}

// playedOver is played over a connection that is there.
func playedOver(t *testing.T, conn, raw net.Conn, s Spec, secured bool) (*tcpEnd, player) {
	t.Helper()
	p := player{raw, raw}
	t.Cleanup(func() { raw.Close() })
	if secured {
		config := mutualTLS(t)
		server := tls.Server(conn, config)
		p.Conn = tls.Client(raw, config)
		shaken := make(chan error, 1)
		go func() { shaken <- server.Handshake() }()
		if err := errors.Join(p.Conn.(*tls.Conn).Handshake(), <-shaken); err != nil { //nolint:forcetypeassert // set above
			t.Fatal(err)
		}
		conn = server
	}
	return newTCPEnd(opened{conn: conn}, testLink, nil, s), p
}

var testLink = Link{Purpose: Training, Lower: 0, Upper: 1}

// toUpper is the header of a frame that belongs on testLink.
var toUpper = Header{Kind: Activation, Generation: 1, To: 1}

// TestWhatIsNoFrameEndsTheLink has a peer that sends something else after a frame, or breaks off, over TCP and over TLS. The error says what came,
// from which node and on which link; nothing but the first frame is delivered, and the memory of what came in part goes back to the pool.
func TestWhatIsNoFrameEndsTheLink(t *testing.T) {
	begun := append(encoded(toUpper, 1024), 1, 2, 3)
	for _, c := range []struct {
		name  string
		sends []byte
		then  func(player)
		want  string // over both
	}{
		{"garbage", []byte(strings.Repeat("garbage ", headerBytes)), player.end, "bad frame header"},
		{"a length too long", encoded(toUpper, 1<<20), player.end, "at most 1024"},
		{"the longest length", encoded(toUpper, -1), player.end, "at most 1024"},
		{"an older generation", encoded(Header{Kind: Activation, To: 1}, 8), player.end, "generation 0"},
		{"a later generation", encoded(Header{Kind: Activation, Generation: 2, To: 1}, 8), player.end, "generation 2, this link of 1"},
		{"a handshake again", encoded(Header{Kind: opening, Generation: 1, From: 3, To: 4}, 8), player.end, "does not belong"},
		{"a killed process in mid-frame", begun, player.breakOff, "1024 bytes: the other end closed the connection without a reason: its process ended"},
		{"a killed process in mid-header", begun[:20], player.breakOff, "its process ended"},
		{"a killed process between frames", nil, player.breakOff, "its process ended"},
		{"a reset in mid-frame", begun, player.reset, "connection reset"},
		{"an end in mid-frame", begun, player.end, "payload of activation"},
		{"an end in mid-header", begun[:20], player.end, "its process ended"},
		{"an end", nil, player.end, "its process ended"},
	} {
		for over, secured := range map[string]bool{"TCP": false, "TLS": true} {
			t.Run(c.name+" over "+over, func(t *testing.T) {
				made := atomic.Int64{}
				e, peer := played(t, Spec{
					Generation: 1, Depth: 1, MaxBytes: 1024, Watch: &Watch{Peer: "node b"},
					Memory: func(int) []byte { made.Add(1); return nil },
				}, secured)
				if _, err := peer.Write(append(encoded(toUpper, 2), 7, 8)); err != nil {
					t.Fatal(err)
				}
				f, err := e.Receive(t.Context())
				if err != nil || string(f.Payload) != "\x07\x08" {
					t.Fatalf("the first frame: % x, %v", f.Payload, err)
				}
				f.Release()
				if _, err := peer.Write(c.sends); err != nil {
					t.Error(err)
				}
				c.then(peer)
				_, err = e.Receive(t.Context())
				for _, want := range []string{c.want, "on the training link of pipeline 0, stages 0 and 1 to node b"} {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%v, want %q", err, want)
					}
				}
				if err := e.Close(nil); err != nil {
					t.Error(err)
				}
				if free := e.pool.kept(); int64(free) != made.Load() {
					t.Errorf("%d of %d payloads came back", free, made.Load())
				}
			})
		}
	}
}

// TestWhatIsNoTLSEndsTheLink has bytes on the connection that TLS did not make, as of somebody on the way.
func TestWhatIsNoTLSEndsTheLink(t *testing.T) {
	e, peer := played(t, Spec{Generation: 1, Depth: 1, MaxBytes: 1024}, true)
	if _, err := peer.raw.Write(append(encoded(toUpper, 2), 7, 8)); err != nil {
		t.Fatal(err)
	}
	if f, err := e.Receive(t.Context()); err == nil || !strings.Contains(err.Error(), "receive on the training link of pipeline 0, stages 0 and 1: tls") {
		t.Errorf("%v, %v: want TLS' refusal", f.Header, err)
	}
	if err := e.Close(nil); err != nil {
		t.Error(err)
	}
}

// kept is how many payloads the pool has that nobody holds.
func (p *pool) kept() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, list := range p.free {
		n += len(list)
	}
	return n
}
