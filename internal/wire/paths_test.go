package wire_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/wire/wiretest"
)

// besideIt is a link whose frames a path in memory carries, and the two ends of the path.
type besideIt struct {
	lower, upper         wire.End
	lowerWatch, toUpper  *wire.Watch
	lowerPath, upperPath *wiretest.MemoryPath
}

// overMemory makes a link over TLS and a path. Both ends are closed, and with them the path, when the test ends.
func overMemory(t *testing.T, s wire.Spec) besideIt {
	t.Helper()
	m := &wiretest.Memory{}
	t.Cleanup(func() {
		if err := m.Closed(); err != nil {
			t.Error(err)
		}
	})
	c := wire.Config{Job: "j", TLS: always(wire.MutualTLS(t)), Paths: &wire.Paths{Transport: m, Always: true}}
	b := watched(t, listen(t, s.Generation, c), s, c)
	b.lowerPath, b.upperPath = m.Paths()[0], m.Paths()[1]
	return b
}

// watched makes a link with a Watch at each end, to a listener.
func watched(t *testing.T, l *wire.Listener, s wire.Spec, c wire.Config) besideIt {
	t.Helper()
	b := besideIt{lowerWatch: &wire.Watch{}, toUpper: &wire.Watch{}}
	if s.Watch != nil { // its bounds
		b.lowerWatch.Every, b.lowerWatch.Least, b.lowerWatch.Most = s.Watch.Every, s.Watch.Least, s.Watch.Most
	}
	var accepted sync.WaitGroup
	var failed error
	ofUpper := s
	ofUpper.Watch = b.toUpper
	accepted.Go(func() { b.upper, failed = l.Accept(t.Context(), link, ofUpper) })
	s.Watch = b.lowerWatch
	var err error
	b.lower, err = wire.Dial(t.Context(), l.Address(), link, s, c)
	accepted.Wait()
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, b.lower, b.upper)
	return b
}

// choices are those of both ends.
func (b besideIt) choices() (lower, upper wire.Choice) {
	low, _ := b.lowerWatch.Observation()
	up, _ := b.toUpper.Observation()
	return low.Choice, up.Choice
}

func TestFramesOverAPath(t *testing.T) {
	wiretest.Conform(t, func(t *testing.T, s wire.Spec) (wire.End, wire.End) {
		b := overMemory(t, s)
		return b.lower, b.upper
	})
}

// TestBothEndsUseWhatWasFaster measures a link and opens another to the same node, which is not measured again.
func TestBothEndsUseWhatWasFaster(t *testing.T) {
	for name, config := range map[string]wire.Config{"tcp": {}, "tls": {TLS: always(wire.MutualTLS(t))}} {
		m := &wiretest.Memory{}
		config.Paths = &wire.Paths{Transport: m}
		var first wire.Choice
		l := listen(t, 1, config)
		for i, most := range []int{100_000, 100_000, 8 << 20} {
			b := watched(t, l, wire.Spec{Generation: 1, Depth: 1, MaxBytes: most}, config)
			low, up := b.choices()
			want := name
			if low.Path.Seconds() < 0.9*low.Connection.Seconds() {
				want = "memory"
			}
			if low.Over != want || up.Over != want || low.Bytes != min(most, 1<<20) || low.Path == 0 || low.Connection == 0 ||
				!strings.Contains(low.Reason, fmt.Sprintf("%d bytes and their answer took", low.Bytes)) || !strings.Contains(up.Reason, low.Reason) {
				t.Errorf("link %d over %s: chosen %+v and %+v, expected %s", i, name, low, up, want)
			}
			if i == 0 {
				first = low
			}
			h := wire.Header{Kind: wire.Activation, Generation: 1, Pipeline: 1, To: 1}
			if err := b.lower.Send(t.Context(), b.lower.NewFrame(h, 9)); err != nil {
				t.Error(err)
			}
			if f, err := b.upper.Receive(t.Context()); err != nil || len(f.Payload) != 9 {
				t.Errorf("received %v, %v", f.Header, err)
			}
			if i == 1 && low != first {
				t.Errorf("measured again: %+v after %+v", low, first)
			}
			if err := errors.Join(b.lower.Close(nil), b.upper.Close(nil), m.Closed()); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestWithoutAPathTheConnectionCarriesFrames has every reason for which there is none. Both ends say it, and the link works.
func TestWithoutAPathTheConnectionCarriesFrames(t *testing.T) {
	with := func(m *wiretest.Memory) *wire.Paths { return &wire.Paths{Transport: m} }
	broken := errors.New("no such device")
	for _, c := range []struct {
		name           string
		dials, listens *wire.Paths
		lower, upper   string // reasons
	}{
		{"nobody wants one", nil, nil, "", ""},
		{"only the dialling end has one", with(&wiretest.Memory{}), nil, "the other node does not use memory", ""},
		{"only the listening end has one", nil, with(&wiretest.Memory{}), "", "the other node does not use memory"},
		{"one is missing", &wire.Paths{Missing: "no library"}, with(&wiretest.Memory{}), "no library", "the other node does not use memory"},
		{"the dialling end cannot open one", with(&wiretest.Memory{Opens: broken}), with(&wiretest.Memory{}), "memory failed: no such device", "the other node says: memory failed: no such device"},
		{"the listening end cannot open one", with(&wiretest.Memory{}), with(&wiretest.Memory{Opens: broken}), "at the other node memory failed: no such device", "memory failed: no such device"},
		{"the dialling end cannot connect", with(&wiretest.Memory{Connects: broken}), with(&wiretest.Memory{}), "memory failed: no such device", "memory failed: no such device"},
		{"the listening end cannot connect", with(&wiretest.Memory{}), with(&wiretest.Memory{Connects: broken}), "at the other node memory failed: no such device", "memory failed: no such device"},
		{"nothing arrives", with(&wiretest.Memory{Deaf: true}), nil, "memory failed: agree on a path: the path was stopped", "memory failed: agree on a path: the path was stopped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.name == "nothing arrives" {
				c.listens = with(c.dials.Transport.(*wiretest.Memory)) //nolint:forcetypeassert // it is one
			}
			b := watched(t, listen(t, 1, wire.Config{Paths: c.listens}), wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8}, wire.Config{Paths: c.dials})
			if low, up := b.choices(); low.Over != "tcp" || low.Reason != c.lower || up.Over != "tcp" || up.Reason != c.upper {
				t.Errorf("chosen %+v and %+v, expected tcp because of %q and %q", low, up, c.lower, c.upper)
			}
			h := wire.Header{Kind: wire.Activation, Generation: 1, Pipeline: 1, To: 1}
			if err := b.lower.Send(t.Context(), b.lower.NewFrame(h, 8)); err != nil {
				t.Error(err)
			}
			if _, err := b.upper.Receive(t.Context()); err != nil {
				t.Error(err)
			}
			for _, p := range []*wire.Paths{c.dials, c.listens} {
				if p != nil && p.Transport != nil {
					if err := p.Transport.(*wiretest.Memory).Closed(); err != nil { //nolint:forcetypeassert // it is one
						t.Error(err)
					}
				}
			}
		})
	}
}

// TestAPathThatFailsEndsTheLink has it fail at one end, or bring what does not belong there. Both ends fail, and the one that saw it says what it was.
func TestAPathThatFailsEndsTheLink(t *testing.T) {
	h := wire.Header{Kind: wire.Activation, Generation: 7, Pipeline: 1, To: 1}
	stale, stray := h, h
	stale.Generation, stray.Pipeline = 6, 2
	for _, c := range []struct {
		name  string
		fails func(b besideIt)
		want  string // of the upper end
	}{
		{"broken", func(b besideIt) { b.upperPath.Break() }, "the path has melted"},
		{"garbage", func(b besideIt) { b.upperPath.Inject([]byte(strings.Repeat("garbage ", 6)), nil) }, "bad frame header"},
		{"an older generation", func(b besideIt) { b.upperPath.Inject(wire.Encoded(stale, 0), nil) }, "of generation 6, this link of 7"},
		{"another pipeline", func(b besideIt) { b.upperPath.Inject(wire.Encoded(stray, 0), nil) }, "does not belong on the training link of pipeline 1"},
		{"too long", func(b besideIt) { b.upperPath.Inject(wire.Encoded(h, 9), nil) }, "9 bytes, this link carries at most 8"},
		{"another length", func(b besideIt) { b.upperPath.Inject(wire.Encoded(h, 8), []byte("short")) }, "5 bytes beside a header that says 8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := overMemory(t, wire.Spec{Generation: 7, Depth: 1, MaxBytes: 8})
			c.fails(b)
			if _, err := b.upper.Receive(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Receive: %v, expected %q", err, c.want)
			}
			if _, err := b.lower.Receive(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Receive of the other end: %v, expected %q as well", err, c.want)
			}
		})
	}
}

// TestAPathThatIsSilentEndsTheLink loses all frames of one end, while the connection stays open: it only tells of ends.
func TestAPathThatIsSilentEndsTheLink(t *testing.T) {
	b := overMemory(t, wire.Spec{Generation: 7, Depth: 1, MaxBytes: 8, Watch: &wire.Watch{Every: 10 * time.Millisecond, Least: 50 * time.Millisecond, Most: 100 * time.Millisecond}})
	b.upperPath.Deafen()
	if _, err := b.lower.Receive(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing has come for") {
		t.Errorf("Receive: %v, expected that nothing comes", err)
	}
	if _, err := b.upper.Receive(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing has come for") {
		t.Errorf("Receive of the other end: %v, expected its reason", err)
	}
}

// TestAProcessThatDiesEndsItsPath cuts the connection and leaves the path, as it is when its network does not say that a process has died.
func TestAProcessThatDiesEndsItsPath(t *testing.T) {
	m := &wiretest.Memory{}
	p := &wire.Paths{Transport: m, Always: true}
	s := wire.Spec{Generation: 7, Depth: 1, MaxBytes: 8}
	l := listen(t, 7, wire.Config{Paths: p})
	address, kill := between(t, l.Address())
	var accepted sync.WaitGroup
	var upper wire.End
	var failed error
	accepted.Go(func() { upper, failed = l.Accept(t.Context(), link, s) })
	lower, err := wire.Dial(t.Context(), address, link, s, wire.Config{Paths: p})
	accepted.Wait()
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, lower, upper)
	kill()
	for _, e := range []wire.End{lower, upper} {
		if _, err := e.Receive(t.Context()); err == nil || !strings.Contains(err.Error(), "its process ended") && !strings.Contains(err.Error(), "reset") {
			t.Errorf("Receive: %v, expected that the process ended", err)
		}
		if err := e.Close(nil); err != nil {
			t.Error(err)
		}
	}
	if err := m.Closed(); err != nil {
		t.Error(err)
	}
}

// between passes the bytes of one connection on, until it is killed.
func between(t *testing.T, to string) (address string, kill func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	var passing sync.WaitGroup
	opened := make(chan error, 1)
	go func() {
		var err, other error
		ends[0], err = l.Accept()
		ends[1], other = net.Dial("tcp", to)
		if opened <- errors.Join(err, other); err != nil || other != nil {
			return
		}
		for i := range ends {
			passing.Go(func() { _, _ = io.Copy(ends[i], ends[1-i]) })
		}
	}()
	return l.Addr().String(), func() {
		if err := errors.Join(<-opened, l.Close(), ends[0].Close(), ends[1].Close()); err != nil {
			t.Fatal(err)
		}
		passing.Wait()
	}
}

// TestFramesThatWereSentArriveBeforeAnEndInOrder sends until an end in order from both ends at once, over a path that is slower than the connection which tells
// of the end.
func TestFramesThatWereSentArriveBeforeAnEndInOrder(t *testing.T) {
	const frames = 50
	for range 20 {
		b := overMemory(t, wire.Spec{Generation: 7, Depth: frames, MaxBytes: 8})
		var ends sync.WaitGroup
		for i, e := range []wire.End{b.lower, b.upper} {
			ends.Go(func() {
				for n := range frames {
					h := wire.Header{Kind: wire.Activation, Generation: 7, Pipeline: 1, From: i, To: 1 - i, Micro: n}
					if err := e.Send(t.Context(), e.NewFrame(h, 8)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		ends.Wait()
		if err := b.lower.Close(nil); err != nil {
			t.Error(err)
		}
		for n := range frames {
			if f, err := b.upper.Receive(t.Context()); err != nil || f.Micro != n {
				t.Fatalf("frame %d: %v, %v", n, f.Header, err)
			}
		}
		if _, err := b.upper.Receive(t.Context()); !errors.Is(err, wire.ErrClosed) {
			t.Errorf("after the last frame: %v, expected ErrClosed", err)
		}
	}
}
