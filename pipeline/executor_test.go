package pipeline

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/trace"
)

// execute runs an executor until the test ends.
func execute(t *testing.T, e *executor) *executor {
	t.Helper()
	e.parker = newParker()
	return executeOn(t, e)
}

func executeOn(t *testing.T, e *executor) *executor {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return e
}

func TestExecutorRunsOneClosureAtATimeInOrder(t *testing.T) {
	for name, p := range map[string]parker{"kernel": newParker(), "channel": newChannelParker()} {
		t.Run(name, func(t *testing.T) {
			e := executeOn(t, &executor{parker: p})
			var busy atomic.Int32
			var all sync.WaitGroup
			for caller := range 8 {
				all.Go(func() {
					last := -1
					for i := range 500 {
						err := e.Do(t.Context(), trace.Span{}, func() error {
							if busy.Add(1) != 1 {
								t.Error("two closures at once")
							}
							if i != last+1 {
								t.Errorf("caller %d: closure %d after %d", caller, i, last)
							}
							last = i
							busy.Add(-1)
							return nil
						})
						if err != nil {
							t.Errorf("Do: %v", err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// order is work that notes when it ran.
type order struct {
	at  int
	ran *[]int
}

func (o order) run()       { *o.ran = append(*o.ran, o.at) }
func (o order) drop(error) { *o.ran = append(*o.ran, -o.at) }

func TestExecutorIsFirstInFirstOut(t *testing.T) {
	e := execute(t, &executor{})
	var ran []int
	for round := range 3 { // the queue's memory is reused and moved
		for i := range 100 {
			e.submit(order{100*round + i, &ran})
		}
		if err := e.Do(t.Context(), trace.Span{}, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.IsSorted(ran) || len(ran) != 300 {
		t.Errorf("%d closures ran, in the order %v", len(ran), ran)
	}
}

func TestDoReturnsTheClosuresError(t *testing.T) {
	e := execute(t, &executor{})
	want := errors.New("no")
	if err := e.Do(t.Context(), trace.Span{}, func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do: %v, want %v", err, want)
	}
}

func TestACancelledCallerLeavesTheQueueButWaitsForWhatHasStarted(t *testing.T) {
	e := execute(t, &executor{})
	started, finish := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	ran := false
	go func() {
		first <- e.Do(ctx, trace.Span{}, func() error { close(started); <-finish; return nil })
	}()
	<-started
	go func() { second <- e.Do(ctx, trace.Span{}, func() error { ran = true; return nil }) }()
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("the closure that waited: %v, want the context's error", err)
	}
	select {
	case err := <-first:
		t.Errorf("the closure that runs was not waited for: %v", err)
	default:
	}
	close(finish)
	if err := <-first; err != nil {
		t.Errorf("the closure that ran: %v", err)
	}
	if err := e.Do(t.Context(), trace.Span{}, func() error { return nil }); err != nil {
		t.Error(err)
	}
	if ran {
		t.Error("a closure ran after its caller had left")
	}
}

func TestAStoppedExecutorRefusesWhatWaits(t *testing.T) {
	e := &executor{parker: newParker()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	started, finish := make(chan struct{}), make(chan struct{})
	results := make(chan error, 2)
	go func() {
		results <- e.Do(context.Background(), trace.Span{}, func() error { close(started); <-finish; return nil })
	}()
	<-started
	var ran []int
	e.submit(order{7, &ran})
	cancel()
	envtest.Eventually(t, "the executor ends", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.leaving })
	close(finish)
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := <-results; err != nil {
		t.Errorf("the closure that ran: %v", err)
	}
	if !slices.Equal(ran, []int{-7}) {
		t.Errorf("the work that waited: %v, want it dropped", ran)
	}
	if err := e.Do(t.Context(), trace.Span{}, func() error { return nil }); !errors.Is(err, errStopped) {
		t.Errorf("Do afterwards: %v, want errStopped", err)
	}
}

func TestAttachRunsFirstAndItsFailureIsRuns(t *testing.T) {
	attached := false
	e := execute(t, &executor{attach: func() error { attached = true; return nil }})
	err := e.Do(t.Context(), trace.Span{}, func() error {
		if !attached {
			return errors.New("not attached")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	want := errors.New("no such core")
	broken := &executor{attach: func() error { return want }, parker: newParker()}
	done := make(chan error)
	go func() { done <- broken.Run(t.Context()) }()
	if err := <-done; !errors.Is(err, want) {
		t.Errorf("Run: %v, want %v", err, want)
	}
}

func TestDoTellsTheWaitAndTheRunApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var spans []trace.Span
		listen := func(e trace.Span) {
			mu.Lock()
			defer mu.Unlock()
			spans = append(spans, e)
		}
		e := executeOn(t, &executor{trace: listen, parker: newChannelParker()})
		var first sync.WaitGroup
		first.Go(func() {
			_ = e.Do(t.Context(), trace.Span{Kind: trace.Compute}, func() error { time.Sleep(3 * time.Second); return nil })
		})
		synctest.Wait()
		err := e.Do(t.Context(), trace.Span{Kind: trace.Average, Pipeline: 2, Stage: 1, Step: 9, Micro: -1},
			func() error { time.Sleep(time.Second); return nil })
		if err != nil {
			t.Fatal(err)
		}
		first.Wait()
		want := map[trace.Kind]time.Duration{trace.WaitDevice: 3 * time.Second, trace.Average: time.Second}
		for _, ev := range spans {
			if ev.Pipeline != 2 {
				continue
			}
			if got := ev.End - ev.Start; got != want[ev.Kind] || ev.Stage != 1 || ev.Step != 9 || ev.Micro != -1 {
				t.Errorf("%v: took %v, want %v: %+v", ev.Kind, got, want[ev.Kind], ev)
			}
			delete(want, ev.Kind)
		}
		if len(want) > 0 {
			t.Errorf("not told: %v", want)
		}
	})
}

func TestProcessorsLeavesSomeForLinks(t *testing.T) {
	for devices := 1; devices < 100; devices *= 3 {
		if n := Processors(devices); n < devices+2 {
			t.Errorf("Processors(%d) is %d", devices, n)
		}
	}
}
