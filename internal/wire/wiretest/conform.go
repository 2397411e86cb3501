// Package wiretest has the suite that every kind of link passes.
package wiretest

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/avgpipe/avgpipe/internal/wire"
)

// Open makes a link of pipeline 1 between stages 0 and 1 and closes it when the test ends.
type Open func(t *testing.T, s wire.Spec) (lower, upper wire.End)

// Conform holds a kind of link to the contract of wire.End.
func Conform(t *testing.T, open Open) {
	tests := []struct {
		claim string
		test  func(t *testing.T, open Open)
	}{
		{"frames arrive in order with their headers and bytes", arriveInOrder},
		{"payloads are aligned to 64 bytes and reused", reusePayloads},
		{"both directions run at once", bothDirections},
		{"Send blocks only while the queue is full", blockWhenFull},
		{"waiting ends with the context", endWithContext},
		{"a frame of another generation is refused", refuseStale},
		{"a payload longer than the link's longest is refused", refuseLong},
		{"Close with a cause fails both ends at once", failBoth},
		{"Close without a cause delivers what was sent", endInOrder},
		{"TryReceive and OnArrival miss no frame and no end", noticeArrivals},
		{"steady state allocates nothing for payloads", steadyPool},
	}
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.claim, " ", "_"), func(t *testing.T) { tt.test(t, open) })
	}
}

const generation = 7

func spec(depth, most int) wire.Spec {
	return wire.Spec{Generation: generation, Depth: depth, MaxBytes: most}
}

// frame fills a frame from stage 0 to 1, or back, with n bytes that depend on its micro-batch.
func frame(e wire.End, kind wire.Kind, micro, n int) wire.Frame {
	h := wire.Header{Kind: kind, Generation: generation, Pipeline: 1, From: 0, To: 1, Step: 1 << 40, Micro: micro}
	if kind == wire.Gradient {
		h.From, h.To = 1, 0
	}
	f := e.NewFrame(h, n)
	for i := range f.Payload {
		f.Payload[i] = byte(micro*31 + i)
	}
	return f
}

func send(t *testing.T, e wire.End, kind wire.Kind, micro, n int) {
	t.Helper()
	if err := e.Send(t.Context(), frame(e, kind, micro, n)); err != nil {
		t.Errorf("send %v %d: %v", kind, micro, err)
	}
}

// expect receives a frame and compares it with what frame made.
func expect(t *testing.T, e wire.End, kind wire.Kind, micro, n int) {
	t.Helper()
	f, err := e.Receive(t.Context())
	if err != nil {
		t.Fatalf("receive %v %d: %v", kind, micro, err)
	}
	defer f.Release()
	check(t, e, f, kind, micro, n)
}

func check(t *testing.T, e wire.End, f wire.Frame, kind wire.Kind, micro, n int) {
	t.Helper()
	want := frame(e, kind, micro, n)
	defer want.Release()
	if f.Header != want.Header {
		t.Errorf("header is %v, want %v", f.Header, want.Header)
	}
	if !bytes.Equal(f.Payload, want.Payload) {
		t.Errorf("%v: payload of %d bytes differs from what was sent (%d bytes)", f.Header, len(f.Payload), n)
	}
}

func arriveInOrder(t *testing.T, open Open) {
	lower, upper := open(t, spec(8, 1<<20))
	sizes := []int{0, 1, 8, 63, 64, 65, 4096, 1 << 20}
	for i, n := range sizes {
		send(t, lower, wire.Activation, i, n)
	}
	for i, n := range sizes {
		expect(t, upper, wire.Activation, i, n)
	}
	send(t, upper, wire.Gradient, 3, 100)
	expect(t, lower, wire.Gradient, 3, 100)
}

func reusePayloads(t *testing.T, open Open) {
	lower, _ := open(t, spec(1, 1000))
	f := lower.NewFrame(wire.Header{}, 1000)
	first := unsafe.SliceData(f.Payload)
	if at := uintptr(unsafe.Pointer(first)); at%64 != 0 {
		t.Errorf("payload lies at %#x, want a multiple of 64", at)
	}
	f.Release()
	if f.Payload != nil {
		t.Error("a released frame still shows its payload")
	}
	f.Release() // a second release of the same frame does nothing
	a, b := lower.NewFrame(wire.Header{}, 999), lower.NewFrame(wire.Header{}, 1000)
	if unsafe.SliceData(a.Payload) != first {
		t.Error("a released payload was not reused")
	}
	if unsafe.SliceData(b.Payload) == first {
		t.Error("one payload was given out twice")
	}
}

func bothDirections(t *testing.T, open Open) {
	lower, upper := open(t, spec(2, 1<<16))
	const frames = 200
	var all sync.WaitGroup
	all.Go(func() {
		for m := range frames {
			send(t, lower, wire.Activation, m, 1<<16)
		}
	})
	all.Go(func() {
		for m := range frames {
			send(t, upper, wire.Gradient, m, 1000)
		}
	})
	all.Go(func() { expectAll(t, lower, wire.Gradient, frames, 1000) })
	expectAll(t, upper, wire.Activation, frames, 1<<16)
	all.Wait()
}

func expectAll(t *testing.T, e wire.End, kind wire.Kind, frames, n int) {
	for m := range frames {
		f, err := e.Receive(t.Context())
		if err != nil {
			t.Errorf("receive %v %d: %v", kind, m, err)
			return
		}
		check(t, e, f, kind, m, n)
		f.Release()
	}
}

func blockWhenFull(t *testing.T, open Open) {
	const depth = 3
	lower, upper := open(t, spec(depth, 1<<20))
	for m := range depth {
		send(t, lower, wire.Activation, m, 8) // nobody receives: a queue of this depth must take them
	}
	// A link between nodes holds more than its queues; whatever it holds, it must end up blocking.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	sent := depth
	var err error
	for ; err == nil; sent++ {
		if sent > 1<<12 {
			t.Fatalf("%d frames of 1 MiB were taken with nobody receiving", sent)
		}
		err = lower.Send(ctx, frame(lower, wire.Activation, sent, 1<<20))
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Send to a full queue: %v, want the context's deadline", err)
	}
	for m := range depth {
		expect(t, upper, wire.Activation, m, 8)
	}
}

func endWithContext(t *testing.T, open Open) {
	_, upper := open(t, spec(1, 8))
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := upper.Receive(ctx)
		done <- err
	}()
	cause := errors.New("the job was cancelled")
	cancel(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("Receive: %v, want the context's cause", err)
	}
}

func refuseStale(t *testing.T, open Open) {
	s := spec(2, 8)
	lower, upper := open(t, s)
	f := frame(lower, wire.Activation, 0, 8)
	f.Generation--
	if err := lower.Send(t.Context(), f); !errors.Is(err, wire.ErrStale) || !strings.Contains(err.Error(), "of generation 6, this link of 7") {
		t.Errorf("send a frame of generation %d: %v, want ErrStale", generation-1, err)
	}
	send(t, lower, wire.Activation, 1, 8) // the link goes on
	expect(t, upper, wire.Activation, 1, 8)
}

func refuseLong(t *testing.T, open Open) {
	lower, upper := open(t, spec(2, 100))
	err := lower.Send(t.Context(), frame(lower, wire.Activation, 0, 101))
	if err == nil || !strings.Contains(err.Error(), "101 bytes") || !strings.Contains(err.Error(), "at most 100") {
		t.Errorf("send 101 bytes: %v, want an error with both lengths", err)
	}
	send(t, lower, wire.Activation, 1, 100)
	expect(t, upper, wire.Activation, 1, 100)
}

func failBoth(t *testing.T, open Open) {
	lower, upper := open(t, spec(1, 8))
	cause := errors.New("device 3 caught fire")
	type result struct {
		where string
		err   error
	}
	results := make(chan result)
	go func() {
		_, err := lower.Receive(t.Context())
		results <- result{"Receive of the closing end", err}
	}()
	go func() {
		_, err := upper.Receive(t.Context())
		results <- result{"Receive of the other end", err}
	}()
	if err := lower.Close(cause); err != nil {
		t.Errorf("Close: %v", err)
	}
	got := []result{<-results, <-results}
	got = append(got,
		result{"Send of the closing end", lower.Send(t.Context(), frame(lower, wire.Activation, 0, 8))},
		result{"Send of the other end", upper.Send(t.Context(), frame(upper, wire.Gradient, 0, 8))})
	for _, r := range got {
		if r.err == nil || !strings.Contains(r.err.Error(), cause.Error()) {
			t.Errorf("%s: %v, want %q", r.where, r.err, cause)
		}
	}
	if err := lower.Send(t.Context(), frame(lower, wire.Activation, 0, 8)); !errors.Is(err, cause) {
		t.Errorf("Send of the closing end: %v does not wrap the cause", err)
	}
	if err := errors.Join(upper.Close(nil), lower.Close(nil)); err != nil {
		t.Errorf("Close after Close: %v", err)
	}
	if err := lower.Send(t.Context(), frame(lower, wire.Activation, 0, 8)); !errors.Is(err, cause) {
		t.Errorf("after a second Close: %v, want the first cause", err)
	}
}

func endInOrder(t *testing.T, open Open) {
	lower, upper := open(t, spec(4, 1<<16))
	for m := range 3 {
		send(t, lower, wire.Activation, m, 1<<16)
	}
	if err := lower.Close(nil); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := lower.Send(t.Context(), frame(lower, wire.Activation, 3, 8)); !errors.Is(err, wire.ErrClosed) {
		t.Errorf("Send after Close: %v, want ErrClosed", err)
	}
	for m := range 3 {
		expect(t, upper, wire.Activation, m, 1<<16)
	}
	if _, err := upper.Receive(t.Context()); !errors.Is(err, wire.ErrClosed) {
		t.Errorf("Receive after the last frame: %v, want ErrClosed", err)
	}
	if err := upper.Send(t.Context(), frame(upper, wire.Gradient, 0, 8)); !errors.Is(err, wire.ErrClosed) {
		t.Errorf("Send of the other end: %v, want ErrClosed", err)
	}
}

func noticeArrivals(t *testing.T, open Open) {
	lower, upper := open(t, spec(4, 8))
	if _, ok, err := upper.TryReceive(); ok || err != nil {
		t.Errorf("TryReceive of nothing: %v, %v", ok, err)
	}
	send(t, lower, wire.Activation, 0, 8)
	noticed := make(chan struct{}, 100)
	upper.OnArrival(func() { noticed <- struct{}{} })
	var micros []int
	for m := range 4 {
		if m > 0 {
			send(t, lower, wire.Activation, m, 8)
		}
		for len(micros) <= m { // each frame has a notice of its own
			<-noticed
			micros = receiveAll(t, upper, micros)
		}
	}
	if want := []int{0, 1, 2, 3}; !slices.Equal(micros, want) {
		t.Errorf("received micro-batches %v, want %v", micros, want)
	}
	if err := lower.Close(errors.New("no more")); err != nil {
		t.Errorf("Close: %v", err)
	}
	for {
		<-noticed // a notice of the end must come
		if _, _, err := upper.TryReceive(); err != nil {
			return
		}
	}
}

// receiveAll appends the micro-batches of the frames that have arrived.
func receiveAll(t *testing.T, e wire.End, micros []int) []int {
	t.Helper()
	for {
		f, ok, err := e.TryReceive()
		if err != nil {
			t.Fatalf("TryReceive: %v", err)
		}
		if !ok {
			return micros
		}
		micros = append(micros, f.Micro)
		f.Release()
	}
}

func steadyPool(t *testing.T, open Open) {
	lower, upper := open(t, spec(2, 1<<20))
	lend := func() {
		send(t, lower, wire.Activation, 0, 1<<20)
		f, err := upper.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.Release()
	}
	for range 4 {
		lend()
	}
	const frames = 64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range frames {
		lend()
	}
	runtime.ReadMemStats(&after)
	// A payload is 1 MiB; what else a frame may cost is far below.
	if n := (after.TotalAlloc - before.TotalAlloc) / frames; n > 1<<16 {
		t.Errorf("%d bytes are allocated per frame of 1 MiB", n)
	}
}
