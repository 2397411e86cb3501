package wire_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/wire/wiretest"
	"github.com/avgpipe/avgpipe/stage/device"
)

// memory is n buffers of so many bytes that stand for memory of a device.
func memory(n, size int) (all []device.Mem) {
	for range n {
		b := make([]float32, size/4)
		all = append(all, device.NewMem(unsafe.Pointer(unsafe.SliceData(b)), len(b), device.F32))
	}
	return all
}

const generation = 7

func content(m device.Mem) []byte { return unsafe.Slice((*byte)(m.Pointer()), m.Bytes()) }

func move(dst, src device.Mem) error {
	copy(content(dst), content(src))
	return nil
}

// newMover makes a mover that is closed after the links that the test opens later.
func newMover(t *testing.T, move func(dst, src device.Mem) error, to []device.Mem) *wire.Mover {
	t.Helper()
	m := wire.NewMover(move, to)
	t.Cleanup(m.Close)
	return m
}

// A link whose memory is moved keeps the contract of every link for frames with payloads.
func TestPairWithMovers(t *testing.T) {
	wiretest.Conform(t, func(t *testing.T, s wire.Spec) (wire.End, wire.End) {
		s.Down, s.Up = newMover(t, move, memory(1, 64)), newMover(t, move, nil)
		lower, upper, err := wire.NewPair(s)
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, lower, upper)
		return lower, upper
	})
}

// moved is a link whose memory moves down, to so many buffers of 256 bytes.
func moved(t *testing.T, move func(dst, src device.Mem) error, to []device.Mem) (lower, upper wire.End) {
	t.Helper()
	s := wire.Spec{Generation: generation, Depth: 8, MaxBytes: 256}
	s.Down = newMover(t, move, to)
	lower, upper, err := wire.NewPair(s)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, lower, upper)
	return lower, upper
}

// Frames with memory and frames with a payload arrive in the order in which they were sent; what was sent is given back when it is copied, and no
// sooner than there is memory for the copy.
func TestAMoverCopiesInOrder(t *testing.T) {
	sources, to := memory(6, 256), memory(2, 256)
	back := make(chan device.Mem, len(sources))
	lower, upper := moved(t, move, to)
	for i, src := range sources {
		for j := range content(src) {
			content(src)[j] = byte(i + 1)
		}
		h := wire.Header{Kind: wire.Activation, Generation: generation, Pipeline: 1, To: 1, Micro: i}
		if err := lower.Send(t.Context(), wire.Lend(h, src, func(f wire.Frame) { back <- f.Memory })); err != nil {
			t.Fatal(err)
		}
		if i == 3 {
			norm := wire.Header{Kind: wire.Norm, Generation: generation, Pipeline: 1, To: 1, Micro: -1}
			if err := lower.Send(t.Context(), lower.NewFrame(norm, 8)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var held []wire.Frame
	for i := range 7 {
		if i == 2 && len(back) > 2 {
			t.Errorf("%d sources are given back, and there is memory for 2 copies", len(back))
		}
		if len(held) == 2 {
			held[0].Release()
			held = held[1:]
		}
		f, err := upper.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i == 4 {
			if f.Kind != wire.Norm || len(f.Payload) != 8 {
				t.Errorf("received %v, expected the norm", f.Header)
			}
			f.Release()
			continue
		}
		want := i
		if i > 4 {
			want--
		}
		if f.Micro != want || !bytes.Equal(content(f.Memory), bytes.Repeat([]byte{byte(want + 1)}, 256)) || f.Memory != to[0] && f.Memory != to[1] {
			t.Errorf("received %v with %d..., expected micro-batch %d in the receiver's memory", f.Header, content(f.Memory)[0], want)
		}
		held = append(held, f)
	}
	for range sources {
		<-back
	}
}

// A copy that fails fails the link at both ends, and gives back what was sent.
func TestACopyThatFailsEndsTheLink(t *testing.T) {
	broken := errors.New("the bus is on fire")
	lower, upper := moved(t, func(device.Mem, device.Mem) error { return broken }, memory(1, 256))
	back := make(chan device.Mem, 1)
	h := wire.Header{Kind: wire.Activation, Generation: generation, Pipeline: 1, To: 1, Micro: 3}
	if err := lower.Send(t.Context(), wire.Lend(h, memory(1, 256)[0], func(f wire.Frame) { back <- f.Memory })); err != nil {
		t.Fatal(err)
	}
	for _, end := range []wire.End{lower, upper} {
		if _, err := end.Receive(t.Context()); !errors.Is(err, broken) || !strings.Contains(err.Error(), "move activation of pipeline 1, stage 0 -> 1") {
			t.Errorf("received: %v, expected why the copy failed", err)
		}
	}
	<-back
}
