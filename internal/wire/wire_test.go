package wire_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/wire/wiretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPair(t *testing.T) {
	wiretest.Conform(t, func(t *testing.T, s wire.Spec) (wire.End, wire.End) {
		lower, upper, err := wire.NewPair(s)
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, lower, upper)
		return lower, upper
	})
}

func TestTCP(t *testing.T) {
	wiretest.Conform(t, func(t *testing.T, s wire.Spec) (wire.End, wire.End) { return connect(t, s, wire.Config{Job: "j"}) })
}

func closeAtEnd(t testing.TB, ends ...wire.End) {
	t.Cleanup(func() {
		for _, e := range ends {
			if err := e.Close(errors.New("test over")); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	})
}

var link = wire.Link{Purpose: wire.Training, Pipeline: 1, Lower: 0, Upper: 1}

func listen(t testing.TB, generation uint64, c wire.Config) *wire.Listener {
	t.Helper()
	l, err := wire.Listen(t.Context(), "127.0.0.1:0", generation, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// connect makes a link over TCP on the loopback.
func connect(t testing.TB, s wire.Spec, c wire.Config) (lower, upper wire.End) {
	t.Helper()
	return connectTo(t, listen(t, s.Generation, c), s, c)
}

// connectTo makes a link to a listener.
func connectTo(t testing.TB, l *wire.Listener, s wire.Spec, c wire.Config) (lower, upper wire.End) {
	t.Helper()
	type result struct {
		end wire.End
		err error
	}
	accepted := make(chan result)
	go func() {
		end, err := l.Accept(t.Context(), link, s)
		accepted <- result{end, err}
	}()
	lower, err := wire.Dial(t.Context(), l.Address(), link, s, c)
	r := <-accepted
	if err := errors.Join(err, r.err); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, lower, r.end)
	return lower, r.end
}

func TestDialWaitsUntilTheOtherNodeExpectsTheLink(t *testing.T) {
	s := wire.Spec{Generation: 3, Depth: 1, MaxBytes: 8}
	l := listen(t, 3, wire.Config{})
	dialled := make(chan error, 1)
	go func() {
		e, err := wire.Dial(t.Context(), l.Address(), link, s, wire.Config{})
		if err == nil {
			err = e.Close(nil)
		}
		dialled <- err
	}()
	time.Sleep(30 * time.Millisecond) // the dialling end is refused at least once
	e, err := l.Accept(t.Context(), link, s)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, e)
	if err := <-dialled; err != nil {
		t.Error(err)
	}
}

func TestHandshakeRefusesAnEarlierGeneration(t *testing.T) {
	told := make(chan error, 1)
	l := listen(t, 5, wire.Config{Refused: func(_ net.Addr, err error) { told <- err }})
	_, err := wire.Dial(t.Context(), l.Address(), link, wire.Spec{Generation: 4, Depth: 1, MaxBytes: 8}, wire.Config{})
	if !errors.Is(err, wire.ErrStale) || !strings.Contains(err.Error(), "of generation 5, this link of 4") {
		t.Errorf("Dial: %v, want ErrStale of generations 4 and 5", err)
	}
	if err := <-told; !strings.Contains(err.Error(), "generation 4 is over") {
		t.Errorf("the end that refuses says %v", err)
	}
}

func TestHandshakeRefusesAnotherJob(t *testing.T) {
	l := listen(t, 1, wire.Config{Job: "a"})
	_, err := wire.Dial(t.Context(), l.Address(), link, wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8}, wire.Config{Job: "b"})
	if err == nil || !strings.Contains(err.Error(), `job "b" is not here`) {
		t.Errorf("Dial: %v, want a refusal that names the job", err)
	}
}

func TestAcceptRefusesAnotherGeneration(t *testing.T) {
	l := listen(t, 2, wire.Config{})
	if _, err := l.Accept(t.Context(), link, wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8}); !errors.Is(err, wire.ErrStale) {
		t.Errorf("Accept: %v, want ErrStale", err)
	}
}

func TestCloseOfTheListenerEndsAccept(t *testing.T) {
	l := listen(t, 1, wire.Config{})
	done := make(chan error)
	go func() {
		_, err := l.Accept(t.Context(), link, wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8})
		done <- err
	}()
	silent, err := net.Dial("tcp", l.Address()) // it never says hello, which must not hold up Close
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v, want net.ErrClosed", err)
	}
}

// TestAPeerThatVanishesFailsTheLink cuts the connection without a close frame, as a killed process does.
func TestAPeerThatVanishesFailsTheLink(t *testing.T) {
	s := wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8}
	l := listen(t, 1, wire.Config{})
	proxy := newProxy(t, l.Address())
	accepted := make(chan wire.End, 1)
	go func() {
		e, err := l.Accept(t.Context(), link, s)
		if err != nil {
			t.Error(err)
		}
		accepted <- e
	}()
	lower, err := wire.Dial(t.Context(), proxy.address(), link, s, wire.Config{})
	if err != nil {
		t.Fatal(err)
	}
	upper := <-accepted
	closeAtEnd(t, lower, upper)
	proxy.cut()
	for name, e := range map[string]wire.End{"dialling": lower, "listening": upper} {
		if _, err := e.Receive(t.Context()); err == nil || !strings.Contains(err.Error(), "receive on the training link of pipeline 1") {
			t.Errorf("%s end: %v, want a failure that names the link", name, err)
		}
	}
}

// proxy passes one connection on until it is cut.
type proxy struct {
	listener net.Listener
	ends     chan net.Conn
	done     chan struct{}
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, ends: make(chan net.Conn, 2), done: make(chan struct{}, 2)}
	go func() {
		a, err := listener.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", to)
		if err != nil {
			a.Close()
			return
		}
		p.ends <- a
		p.ends <- b
		go func() { _, _ = io.Copy(a, b); p.done <- struct{}{} }()
		_, _ = io.Copy(b, a)
		p.done <- struct{}{}
	}()
	t.Cleanup(func() { listener.Close() })
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) cut() {
	a, b := <-p.ends, <-p.ends
	a.Close()
	b.Close()
	<-p.done
	<-p.done
}

func TestPipelinesDoNotWaitInEachOthersQueues(t *testing.T) {
	s := wire.Spec{Generation: 1, Depth: 1, MaxBytes: 1 << 20}
	l := listen(t, 1, wire.Config{})
	open := func(pipeline int) (wire.End, wire.End) {
		link := wire.Link{Purpose: wire.Training, Pipeline: pipeline, Lower: 0, Upper: 1}
		accepted := make(chan wire.End, 1)
		go func() {
			e, err := l.Accept(t.Context(), link, s)
			if err != nil {
				t.Error(err)
			}
			accepted <- e
		}()
		lower, err := wire.Dial(t.Context(), l.Address(), link, s, wire.Config{})
		if err != nil {
			t.Fatal(err)
		}
		upper := <-accepted
		closeAtEnd(t, lower, upper)
		return lower, upper
	}
	stuck, _ := open(0)
	free, freeUpper := open(1)
	filled := make(chan struct{})
	go func() { // pipeline 0 sends until nothing more fits; its other end never receives
		defer close(filled)
		for range 64 {
			h := wire.Header{Kind: wire.Activation, Generation: 1, Pipeline: 0, From: 0, To: 1}
			if stuck.Send(t.Context(), stuck.NewFrame(h, 1<<20)) != nil {
				return
			}
		}
	}()
	for m := range 16 {
		h := wire.Header{Kind: wire.Activation, Generation: 1, Pipeline: 1, From: 0, To: 1, Micro: m}
		if err := free.Send(t.Context(), free.NewFrame(h, 1<<20)); err != nil {
			t.Fatal(err)
		}
		f, err := freeUpper.Receive(t.Context())
		if err != nil || f.Micro != m {
			t.Fatalf("frame %d of the free pipeline: %v, %v", m, f.Header, err)
		}
		f.Release()
	}
	if err := stuck.Close(errors.New("test over")); err != nil {
		t.Errorf("Close: %v", err)
	}
	<-filled
}

func TestSpecNamesTheFieldThatIsWrong(t *testing.T) {
	for _, s := range []wire.Spec{{Depth: 0, MaxBytes: 1}, {Depth: 1, MaxBytes: 0}, {Depth: 1, MaxBytes: 1 << 40}} {
		if _, _, err := wire.NewPair(s); err == nil {
			t.Errorf("NewPair(%+v) succeeded", s)
		}
	}
}
