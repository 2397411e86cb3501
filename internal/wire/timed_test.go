package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
)

// aheadPeer is the lower end of testLink on a host whose clock is ahead. It answers probes, and sends an activation that takes a while.
func aheadPeer(t *testing.T, conn net.Conn, ahead, takes time.Duration, sent chan<- time.Duration) {
	write := func(h Header, stamp uint32, payload []byte) {
		b := make([]byte, headerBytes)
		h.encodeSent(b, len(payload), stamp)
		if _, err := conn.Write(append(b, payload...)); err != nil {
			t.Error(err)
		}
	}
	b := make([]byte, headerBytes)
	for probes := 0; ; {
		if _, err := io.ReadFull(conn, b); err != nil {
			return
		}
		h, n, err := decodeHeader(b, 1<<10)
		if err != nil || h.Kind == closing {
			return
		}
		payload := make([]byte, n)
		if _, err := io.ReadFull(conn, payload); err != nil || h.Kind != probing {
			continue
		}
		now := uint64(clock() + int64(ahead))
		payload = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(payload, now), now)
		write(testLink.header(echoing, 1), 0, payload)
		if probes++; probes == 3 {
			at := trace.Now()
			time.Sleep(takes)
			write(Header{Kind: Activation, Generation: 1, To: 1, Step: 5, Micro: 2}, stampOf(at+ahead), make([]byte, 8))
			sent <- at
		}
	}
}

// TestFramesSayWhenTheyWereSent on the clock of the end that receives them, whatever the other host's clock says, also across 2^32 microseconds.
func TestFramesSayWhenTheyWereSent(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"ahead": 7 * time.Second, "behind": -90 * time.Minute, "a year ahead": 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				type seen struct {
					Header
					sent time.Duration
				}
				timed, sent := make(chan seen, 1), make(chan time.Duration, 1)
				w := &Watch{Timed: func(h Header, sent time.Duration) {
					if h.Kind == Activation {
						timed <- seen{h, sent}
					}
				}}
				a, b := net.Pipe()
				up := newTCPEnd(opened{conn: a}, testLink, nil, Spec{Generation: 1, Depth: 1, MaxBytes: 8, Watch: w})
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					aheadPeer(t, b, ahead, 30*time.Millisecond, sent)
				}()
				got, want := <-timed, <-sent
				if off := (got.sent - want).Abs(); off > time.Microsecond || got.Step != 5 || got.Micro != 2 {
					t.Errorf("%v was sent at %v, %v from what was seen", got.Header, want, off)
				}
				if o, _ := w.Observation(); (o.Offset - ahead).Abs() > time.Microsecond {
					t.Errorf("the other clock is ahead by %v, seen as %v", ahead, o.Offset)
				}
				up.finish(errors.New("test over"))
				b.Close()
				<-ended
				_ = up.Close(nil)
			})
		})
	}
}

// A better probe of long ago says less than a worse one of now: clocks part.
func TestOffsetsAreOfProbesThatAreNeitherSlowNorOld(t *testing.T) {
	now := trace.Now()
	w := &Watch{probes: []probed{
		{roundTrip: 100 * time.Microsecond, offset: 1, at: now - 30*time.Second}, // 50 us, and 450 since
		{roundTrip: 400 * time.Microsecond, offset: 2, at: now - 2*time.Second},  // 200 us, and 30 since
		{roundTrip: 900 * time.Microsecond, offset: 3, at: now},
	}}
	w.hear(0)
	if o, _ := w.Observation(); o.RoundTrip != 100*time.Microsecond || o.Offset != 2 || o.Uncertain < 230*time.Microsecond {
		t.Errorf("%+v", o)
	}
}

// TestOnlyWhoAsksIsToldWhenFramesWereSent has peers that say in the handshake that they take such headers, and one of a release before those, which refuses them.
func TestOnlyWhoAsksIsToldWhenFramesWereSent(t *testing.T) {
	for _, asks := range []bool{true, false} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		header := make(chan []byte, 1)
		go func() {
			b := make([]byte, headerBytes)
			defer func() { header <- b }()
			conn, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if _, err := readMessage(conn, opening, &hello{}); err != nil {
				t.Error(err)
			}
			if err := writeMessage(conn, Header{Kind: answering, Generation: 1, Micro: -1}, reply{Verdict: accepted, Timed: asks}); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(conn, b); err != nil {
				t.Error(err)
			}
		}()
		e, err := Dial(t.Context(), l.Addr().String(), testLink, Spec{Generation: 1, Depth: 1, MaxBytes: 8}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Send(t.Context(), e.NewFrame(Header{Kind: Activation, Generation: 1, To: 1}, 8)); err != nil {
			t.Error(err)
		}
		if b := <-header; bytes.Equal(b[40:44], make([]byte, 4)) == asks {
			t.Errorf("asked: %v; the header has % x", asks, b[40:44])
		}
		_ = e.Close(errors.New("test over"))
	}
}
