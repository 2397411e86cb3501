package wire_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/wire/wiretest"
)

// newLine makes a line that is closed after the links that the test opens later.
func newLine(t *testing.T, s wire.Shape) *wire.Line {
	t.Helper()
	l := wire.NewLine(s)
	t.Cleanup(l.Close)
	return l
}

// A link along lines keeps the contract of every link.
func TestPairAlongLines(t *testing.T) {
	wiretest.Conform(t, func(t *testing.T, s wire.Spec) (wire.End, wire.End) {
		s.Down = newLine(t, wire.Shape{Latency: 100 * time.Microsecond, Bandwidth: 1 << 32})
		s.Up = newLine(t, wire.Shape{Latency: 50 * time.Microsecond})
		lower, upper, err := wire.NewPair(s)
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, lower, upper)
		return lower, upper
	})
}

func TestTCPAlongLines(t *testing.T) {
	wiretest.Conform(t, func(t *testing.T, s wire.Spec) (wire.End, wire.End) {
		s.Down = newLine(t, wire.Shape{Latency: 100 * time.Microsecond})
		s.Up = newLine(t, wire.Shape{Bandwidth: 1 << 32})
		return connect(t, s, wire.Config{Job: "j"})
	})
}

// spans collects spans.
type spans struct {
	mu  sync.Mutex
	all []trace.Span
}

func (s *spans) listener() trace.Listener {
	return func(e trace.Span) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, e)
	}
}

// Two links share a line: what they send at once leaves one after the other, and none arrives early.
func TestFramesLeaveALineOneAfterTheOther(t *testing.T) {
	const bytes, leaves, latency = 1000, 2 * time.Millisecond, 5 * time.Millisecond
	var seen spans
	line := newLine(t, wire.Shape{Latency: latency, Bandwidth: bytes / leaves.Seconds()})
	s := wire.Spec{Generation: 1, Depth: 4, MaxBytes: bytes, Down: line, Trace: seen.listener()}
	var uppers []wire.End
	start := time.Now()
	for pipeline := range 2 {
		lower, upper, err := wire.NewPair(s)
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, lower, upper)
		uppers = append(uppers, upper)
		for micro := range 2 {
			h := wire.Header{Kind: wire.Activation, Generation: 1, Pipeline: pipeline, To: 1, Micro: micro}
			if err := lower.Send(t.Context(), lower.NewFrame(h, bytes)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 4 {
		f, err := uppers[i/2].Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if freed, least := time.Since(start), time.Duration(i+1)*leaves+latency; freed < least {
			t.Errorf("frame %d arrived after %v, want at least %v", i, freed, least)
		}
		f.Release()
	}
	if len(seen.all) != 4 {
		t.Fatalf("%d spans for 4 frames", len(seen.all))
	}
	for i, e := range seen.all {
		if e.Kind != trace.Send || e.Pipeline != i/2 || e.Micro != i%2 || e.End-e.Start < leaves+latency {
			t.Errorf("span %d: %+v", i, e)
		}
		if i > 0 && e.Start-seen.all[i-1].Start < leaves {
			t.Errorf("frame %d left %v after the one before, want at least %v", i, e.Start-seen.all[i-1].Start, leaves)
		}
	}
}

// A failed link drops what is under way on a line, and others on the line go on.
func TestAFailedLinkLeavesItsLineToOthers(t *testing.T) {
	line := newLine(t, wire.Shape{Latency: 20 * time.Millisecond})
	s := wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8, Down: line}
	open := func() (wire.End, wire.End) {
		lower, upper, err := wire.NewPair(s)
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, lower, upper)
		return lower, upper
	}
	failing, upper := open()
	other, otherUpper := open()
	for _, e := range []wire.End{failing, other} {
		if err := e.Send(t.Context(), e.NewFrame(wire.Header{Kind: wire.Activation, Generation: 1, To: 1}, 8)); err != nil {
			t.Fatal(err)
		}
	}
	if err := failing.Close(errors.New("a device burns")); err != nil {
		t.Fatal(err)
	}
	if _, err := upper.Receive(t.Context()); err == nil {
		t.Error("a frame arrived on a failed link")
	}
	f, err := otherUpper.Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.Release()
}

func TestAClosedLineRefusesFramesAndEndsAtOnce(t *testing.T) {
	line := newLine(t, wire.Shape{Latency: time.Hour})
	lower, upper, err := wire.NewPair(wire.Spec{Generation: 1, Depth: 2, MaxBytes: 8, Down: line})
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, lower, upper)
	send := func() error {
		return lower.Send(t.Context(), lower.NewFrame(wire.Header{Kind: wire.Activation, Generation: 1, To: 1}, 8))
	}
	if err := send(); err != nil {
		t.Fatal(err)
	}
	line.Close()
	if err := send(); err == nil {
		t.Error("a closed line freed a frame")
	}
}

func TestANetworkHasALineForEachPairAndDirection(t *testing.T) {
	n := wire.NewNetwork(func(from, _ int) wire.Shape {
		if from == 2 {
			return wire.Shape{} // sends as fast as it can
		}
		return wire.Shape{Latency: time.Millisecond}
	})
	defer n.Close()
	down, up := n.Line(0, 1), n.Line(1, 0)
	if down == nil || up == nil || down == up || down != n.Line(0, 1) {
		t.Errorf("lines %p and %p: want two, always the same", down, up)
	}
	if n.Line(1, 1) != nil || n.Line(2, 1) != nil || (*wire.Network)(nil).Line(0, 1) != nil {
		t.Error("a line within a device, without a shape or without a network")
	}
}

// What a line delivers late is added up for the device that it leads to.
func TestLateFramesCountForTheDeviceThatWaits(t *testing.T) {
	n := wire.NewNetwork(func(int, int) wire.Shape { return wire.Shape{Latency: time.Microsecond} })
	t.Cleanup(n.Close)
	if late := n.Late(1); late != 0 {
		t.Errorf("before the first frame device 1 waited for %v", late)
	}
	lower, upper, err := wire.NewPair(wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8, Down: n.Line(0, 1), Up: n.Line(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, lower, upper)
	for n.Late(1) == 0 { // no line is on time to the nanosecond
		if err := lower.Send(t.Context(), lower.NewFrame(wire.Header{Kind: wire.Activation, Generation: 1, To: 1}, 8)); err != nil {
			t.Fatal(err)
		}
		f, err := upper.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.Release()
	}
	if late := n.Late(0) + n.Late(2) + (*wire.Network)(nil).Late(1); late != 0 {
		t.Errorf("devices to which no frame went waited for %v", late)
	}
}
