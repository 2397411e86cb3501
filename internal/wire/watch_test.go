package wire

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// watchedPair makes both ends of a link over an unbuffered connection.
func watchedPair(lower, upper *Watch) (low, up *tcpEnd) {
	a, b := net.Pipe()
	l := Link{Purpose: Training, Pipeline: 0, Lower: 0, Upper: 1}
	s := Spec{Generation: 1, Depth: 2, MaxBytes: 1 << 20}
	s.Watch = lower
	low = newTCPEnd(opened{conn: a}, l, nil, s)
	s.Watch = upper
	return low, newTCPEnd(opened{conn: b}, l, nil, s)
}

func TestAnIdleLinkStaysAndIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lower, upper := &Watch{Peer: "node b"}, &Watch{Peer: "node a"}
		low, up := watchedPair(lower, upper)
		time.Sleep(5 * time.Minute)
		synctest.Wait() // both readers have taken the answers of this instant
		for _, w := range []*Watch{lower, upper} {
			o, ok := w.Observation()
			if !ok || o.Silent > time.Second || len(w.probes) != recentProbes || o.RoundTrip != 0 || o.Offset != 0 || o.Received == 0 {
				t.Errorf("after minutes without frames: %+v of %d probes", o, len(w.probes))
			}
		}
		if err := errors.Join(low.Close(nil), up.Close(nil)); err != nil {
			t.Error(err)
		}
		if _, err := low.Receive(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("receive: %v, want an end in order", err)
		}
	})
}

// TestASilentPeerEndsTheLinkAtItsBound has a peer whose connection stays open and that sends nothing, as of a host that is gone or a
// process that has stopped.
func TestASilentPeerEndsTheLinkAtItsBound(t *testing.T) {
	for name, c := range map[string]struct {
		watch *Watch
		want  time.Duration
	}{
		"nothing measured":   {&Watch{}, 3 * time.Second},
		"long steps":         {&Watch{Step: func() time.Duration { return 12 * time.Second }}, 6 * time.Second},
		"very long steps":    {&Watch{Step: func() time.Duration { return time.Hour }}, 15 * time.Second},
		"a long way":         {&Watch{probes: []probed{{roundTrip: time.Second}, {roundTrip: time.Millisecond}}}, 8 * time.Second},
		"a bound of its own": {&Watch{Least: time.Second, Every: 100 * time.Millisecond}, time.Second},
		"short steps":        {&Watch{Step: func() time.Duration { return time.Millisecond }}, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, b) }()
				w := c.watch
				w.Peer = "node b at 10.0.0.2:7"
				e := newTCPEnd(opened{conn: a}, Link{Purpose: Training, Lower: 0, Upper: 1}, nil, Spec{Generation: 1, Depth: 1, MaxBytes: 8, Watch: w})
				begin := time.Now()
				_, err := e.Receive(t.Context())
				took := time.Since(begin)
				if took < c.want || took > c.want+w.every() {
					t.Errorf("it took %v, want %v", took, c.want)
				}
				for _, part := range []string{"training link of pipeline 0, stages 0 and 1 to node b at 10.0.0.2:7", "nothing has come for"} {
					if err == nil || !strings.Contains(err.Error(), part) {
						t.Errorf("%v, want %q", err, part)
					}
				}
				if err := e.Close(nil); err != nil {
					t.Error(err)
				}
				b.Close()
			})
		})
	}
}

// TestASlowReaderIsNotLost has the upper end take nothing for far longer than the bound.
func TestASlowReaderIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		low, up := watchedPair(&Watch{}, &Watch{})
		const frames = 5
		done := make(chan error, 1)
		go func() {
			for m := range frames {
				if err := low.Send(t.Context(), low.NewFrame(Header{Kind: Activation, Generation: 1, To: 1, Micro: m}, 1<<20)); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		for m := range frames {
			time.Sleep(time.Minute)
			f, err := up.Receive(t.Context())
			if err != nil || f.Micro != m {
				t.Fatalf("frame %d: %v, %v", m, f.Header, err)
			}
			f.Release()
		}
		if err := errors.Join(<-done, low.Close(nil), up.Close(nil)); err != nil {
			t.Error(err)
		}
	})
}

// TestALinkOfOneDirectionStays has a link of averaging messages: its upper end sends nothing but answers, and takes its messages far later than its bound.
func TestALinkOfOneDirectionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		l, s := Link{Purpose: Averaged, Pipeline: 1, Lower: 2, Upper: 2}, Spec{Generation: 1, Depth: 2, MaxBytes: 1 << 20}
		s.Watch = &Watch{}
		low := newTCPEnd(opened{conn: a}, l, nil, s)
		s.Watch = &Watch{}
		up := newTCPEnd(opened{conn: b}, l, nil, s)
		message := Header{Kind: Message, Generation: 1, Pipeline: 1, From: 2, To: 2, Micro: -1}
		for message.Step = range uint64(5) {
			time.Sleep(20 * time.Second)
			if err := low.Send(t.Context(), low.NewFrame(message, 1<<20)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Second)
			f, err := up.Receive(t.Context())
			if err != nil || f.Header != message {
				t.Fatalf("%v: %v, want %v", f.Header, err, message)
			}
			f.Release()
		}
		if err := errors.Join(low.Close(nil), up.Close(nil)); err != nil {
			t.Error(err)
		}
	})
}

// TestAFrameThatTakesLongerThanTheBoundArrives sends one over a line that is slow.
func TestAFrameThatTakesLongerThanTheBoundArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, near := net.Pipe()
		far, b := net.Pipe()
		pass := func(to, from net.Conn) {
			piece := make([]byte, 4096)
			for {
				n, err := from.Read(piece)
				time.Sleep(200 * time.Millisecond)
				if err != nil {
					to.Close()
					return
				}
				if _, err := to.Write(piece[:n]); err != nil {
					from.Close()
					return
				}
			}
		}
		var passing sync.WaitGroup
		passing.Go(func() { pass(far, near) })
		passing.Go(func() { pass(near, far) })
		l, s := Link{Purpose: Training, Lower: 0, Upper: 1}, Spec{Generation: 1, Depth: 2, MaxBytes: 1 << 20}
		s.Watch = &Watch{}
		low := newTCPEnd(opened{conn: a}, l, nil, s)
		s.Watch = &Watch{}
		up := newTCPEnd(opened{conn: b}, l, nil, s)
		if err := low.Send(t.Context(), low.NewFrame(Header{Kind: Activation, Generation: 1, To: 1}, 1<<20)); err != nil {
			t.Fatal(err)
		}
		f, err := up.Receive(t.Context())
		if err != nil || len(f.Payload) != 1<<20 {
			t.Fatalf("%d bytes: %v", len(f.Payload), err)
		}
		f.Release()
		time.Sleep(time.Minute)
		if o, _ := s.Watch.Observation(); o.RoundTrip < 400*time.Millisecond {
			t.Errorf("a round trip of %v over two delays of 200 ms", o.RoundTrip)
		}
		_, _ = low.Close(errors.New("test over")), up.Close(errors.New("test over"))
		near.Close()
		far.Close()
		passing.Wait()
	})
}

func TestOffsetsOfClocks(t *testing.T) {
	w := &Watch{}
	w.hear(0)
	put := func(stamps ...int64) []byte {
		e := &tcpEnd{}
		b := e.small[:0]
		for _, s := range stamps {
			for i := range 8 {
				b = append(b, byte(s>>(8*i)))
			}
		}
		return b
	}
	w.answered(put(1000, 51500, 51600), 2600) // 0.5 us each way, ahead by 50 us, and held for 0.1 us
	w.answered(put(1000, 51100, 51200), 1300) // 0.1 us each way
	w.answered(put(1000, 51000, 50000), 1300) // no clock
	if o, _ := w.Observation(); o.RoundTrip != 200 || o.Offset != 50000 {
		t.Errorf("round trip %v, offset %v; want 200ns, 50µs", o.RoundTrip, o.Offset)
	}
}
