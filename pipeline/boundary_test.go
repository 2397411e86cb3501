package pipeline

import (
	"context"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/stage/device"
)

// refusal is more than the bytes of a connection that is refused because the other node does not expect the link yet: how often one is
// depends on the load. One that is accepted takes more.
const refusal = 1000

// relay passes TCP connections on to an address and counts the bytes of both directions of those that are accepted.
func relay(t *testing.T, to string, count *atomic.Int64) (address string) {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	pass := func(from, to net.Conn) int64 {
		n, _ := io.Copy(to, from) // until either side closes
		_ = to.Close()
		return n
	}
	running.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			upper, err := new(net.Dialer).DialContext(context.WithoutCancel(t.Context()), "tcp", to)
			if err != nil {
				_ = from.Close()
				return
			}
			running.Go(func() {
				down := make(chan int64, 1)
				go func() { down <- pass(from, upper) }()
				if n := pass(upper, from) + <-down; n > refusal {
					count.Add(n)
				}
			})
		}
	})
	return l.Addr().String()
}

// onTwoNodes trains two stages on two nodes and returns its numbers, and the bytes between the nodes.
func onTwoNodes(t *testing.T, boundary device.Type) (numbers []float64, bytes int64) {
	t.Helper()
	var count atomic.Int64
	listener, err := wire.Listen(t.Context(), "127.0.0.1:0", 3, wire.Config{Job: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	t.Run(boundary.String(), func(t *testing.T) { // which ends when all is counted
		address := relay(t, listener.Address(), &count)
		logs, errs := make([]modelLog, 2), make([]error, 2)
		var running sync.WaitGroup
		for node := range logs {
			c := modelConfig(t, onHost, plan(t, "1f1b", 2, modelMicros), 1, boundary, &logs[node])
			c.Stages, c.Generation = c.Stages[node:node+1], 3
			c.Connect = func(ctx context.Context, l wire.Link, upper bool, s wire.Spec) (wire.End, error) {
				if upper {
					return listener.Accept(ctx, l, s)
				}
				return wire.Dial(ctx, address, l, s, wire.Config{Job: "test"})
			}
			g, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			running.Go(func() { errs[node] = g.Run(t.Context()) })
		}
		running.Wait()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		numbers = logs[1].numbers(1)
	})
	return numbers, count.Load()
}

// TestBoundariesInBF16TakeHalfTheBytes between nodes, and compute the bits that they do within one process.
func TestBoundariesInBF16TakeHalfTheBytes(t *testing.T) {
	wide, all := onTwoNodes(t, device.F32)
	narrow, less := onTwoNodes(t, device.BF16)
	const message = 6 * 12 * 4 // of one sample in F32
	const messages = 6*modelMicros*2 + 4*3
	t.Logf("%d bytes in f32, %d in bf16, of which %d and half as many are messages", all, less, messages*message)
	if saved := all - less; math.Abs(float64(saved-messages*message/2)) > messages*message/20 { // connections end with a reason or without
		t.Errorf("%d bytes pass in f32, %d in bf16: %d less, want about %d", all, less, saved, messages*message/2)
	}
	var log modelLog
	g, err := New(modelConfig(t, onHost, plan(t, "1f1b", 2, modelMicros), 1, device.BF16, &log))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if one := log.numbers(1); !slices.Equal(one, narrow) {
		t.Errorf("within one process\n%v, between two\n%v", one, narrow)
	}
	if slices.Equal(narrow, wide) {
		t.Error("bf16 gives the numbers of f32")
	}
	for i, w := range wide {
		if math.Abs(narrow[i]-w) > 0.01*math.Abs(w) {
			t.Errorf("number %d is %v, in f32 %v", i, narrow[i], w)
		}
	}
}
