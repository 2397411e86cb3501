//go:build ucx && cgo && linux

package ucx_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/wire/ucx"
)

// childVariable has this test binary be the other end of a link.
const childVariable = "AVGPIPE_TEST_UCX_CHILD"

const most = 8 << 20 // bytes of a frame between processes

func processSpec(w *wire.Watch) wire.Spec {
	return wire.Spec{Generation: 7, Depth: 4, MaxBytes: most, Watch: w}
}

// child prints where it listens, and sends back all frames of a link.
func child() error {
	u, err := ucx.New("lo")
	if err != nil {
		return err
	}
	ctx := context.Background()
	l, err := wire.Listen(ctx, "127.0.0.1:0", 7, wire.Config{Paths: &wire.Paths{Transport: u}})
	if err != nil {
		return err
	}
	fmt.Println(l.Address())
	e, err := l.Accept(ctx, link, processSpec(&wire.Watch{}))
	for err == nil {
		var f wire.Frame
		if f, err = e.Receive(ctx); err == nil {
			back := e.NewFrame(f.Header, len(f.Payload))
			back.From, back.To = f.To, f.From
			copy(back.Payload, f.Payload)
			f.Release()
			err = e.Send(ctx, back)
		}
	}
	if errors.Is(err, wire.ErrClosed) {
		err = nil
	}
	return errors.Join(err, e.Close(nil), l.Close(), u.Close())
}

// withChild makes a link to another process.
func withChild(t *testing.T, w *wire.Watch) (wire.End, *exec.Cmd) {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), childVariable+"=1")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	u := transport(t, "lo")
	e, err := wire.Dial(t.Context(), strings.TrimSpace(address), link, processSpec(w), wire.Config{Paths: &wire.Paths{Transport: u, Always: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(errors.New("test over")); err != nil {
			t.Error(err)
		}
	})
	return e, c
}

func header(micro int) wire.Header {
	return wire.Header{Kind: wire.Activation, Generation: 7, Pipeline: 1, To: 1, Micro: micro}
}

// exchange sends a frame of n bytes and waits until it has come back.
func exchange(t *testing.T, e wire.End, micro, n int) {
	t.Helper()
	f := e.NewFrame(header(micro), n)
	for i := range f.Payload {
		f.Payload[i] = byte(i*7 + micro)
	}
	if err := e.Send(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	back, err := e.Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer back.Release()
	if back.Micro != micro || len(back.Payload) != n {
		t.Fatalf("%v with %d bytes came back, expected micro-batch %d with %d", back.Header, len(back.Payload), micro, n)
	}
	for i, b := range back.Payload {
		if b != byte(i*7+micro) {
			t.Fatalf("byte %d of %d is %d, expected %d", i, n, b, byte(i*7+micro))
		}
	}
}

// TestFramesBetweenProcesses sends frames of all sizes around which UCX and this package change their ways, and ends in order.
func TestFramesBetweenProcesses(t *testing.T) {
	e, c := withChild(t, &wire.Watch{})
	for i, n := range []int{0, 1, 8 << 10, 8<<10 + 1, 64 << 10, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5<<20 + 13, most, 3, most} {
		exchange(t, e, i, n)
	}
	if err := e.Close(nil); err != nil {
		t.Error(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("the other process: %v", err)
	}
}

// sending keeps frames of full length on their way until the link ends, and returns why it did.
func sending(t *testing.T, e wire.End) error {
	t.Helper()
	for {
		if err := e.Send(t.Context(), e.NewFrame(header(0), most)); err != nil {
			return err
		}
	}
}

func TestAProcessThatIsKilledEndsTheLink(t *testing.T) {
	e, c := withChild(t, &wire.Watch{Peer: "node b"})
	exchange(t, e, 0, most)
	ended := make(chan error, 1)
	go func() { ended <- sending(t, e) }()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	err := <-ended
	if err == nil || !strings.Contains(err.Error(), "on the training link of pipeline 1, stages 0 and 1 to node b") {
		t.Errorf("the link ended with %v, expected its name", err)
	}
	t.Log(err)
}

func TestAProcessThatIsStoppedEndsTheLink(t *testing.T) {
	var step atomic.Int64 // a long one until the process is stopped, so that no slow machine is taken for that
	step.Store(int64(2 * time.Minute))
	e, c := withChild(t, &wire.Watch{
		Every: 20 * time.Millisecond, Least: 200 * time.Millisecond, Most: time.Minute, Step: func() time.Duration { return time.Duration(step.Load()) },
	})
	exchange(t, e, 0, most)
	ended := make(chan error, 1)
	go func() { ended <- sending(t, e) }()
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	step.Store(0)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "nothing has come for") {
		t.Errorf("the link ended with %v, expected that nothing came", err)
	}
	if err := errors.Join(e.Close(nil), c.Process.Kill()); err != nil {
		t.Error(err)
	}
	_ = c.Wait()
}

// TestAnIdleLinkTakesNoProcessor compares the processor time of this process with what a thread that asks again and again would take.
func TestAnIdleLinkTakesNoProcessor(t *testing.T) {
	e, c := withChild(t, &wire.Watch{})
	exchange(t, e, 0, most)
	before := used(t)
	start := time.Now()
	_, err := e.Receive(contextFor(t, 2*time.Second))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if took, passed := used(t)-before, time.Since(start); took > passed/4 {
		t.Errorf("an idle link took %v of a processor in %v", took, passed)
	} else {
		t.Logf("an idle link took %v of a processor in %v", took, passed)
	}
	if err := e.Close(nil); err != nil {
		t.Error(err)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

func contextFor(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// used is the processor time that this process has taken.
func used(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
