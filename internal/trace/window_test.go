package trace

import (
	"math"
	"sync"
	"testing"
	"time"
)

const second = time.Second

// spans adds spans that end one after the other from begin on.
func spans(a *Accumulator, begin time.Duration, all ...Span) {
	at := begin
	for _, e := range all {
		e.Start, e.End = at, at+e.End
		at = e.End
		a.Add(e)
	}
}

func of(k Kind, d time.Duration) Span { return Span{Kind: k, End: d} }

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9 {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func sum(f Fractions) float64 {
	return f.Busy + f.Evaluate + f.Optimizer + f.Average + f.Commit + f.WaitUpstream + f.WaitDownstream + f.Idle
}

func TestFractionsOfAWindowAddUpToOne(t *testing.T) {
	a := newAccumulator(16*second, 0)
	spans(a, 0, of(Compute, 4*second), of(Optimizer, second), of(Average, second), of(Commit, second), of(Evaluate, second),
		of(WaitUpstream, second), of(Send, second))
	f := a.Fractions(10 * second)
	near(t, "busy", f.Busy, 0.4)
	near(t, "optimizer", f.Optimizer, 0.1)
	near(t, "average", f.Average, 0.1)
	near(t, "commit", f.Commit, 0.1)
	near(t, "evaluate", f.Evaluate, 0.1)
	near(t, "wait upstream", f.WaitUpstream, 0.1)
	near(t, "idle", f.Idle, 0.1)
	near(t, "the sum", sum(f), 1)
}

// TestIdleTimeIsSharedOutByWhatPipelinesWaitedFor has three pipelines wait for 12 s in all while the device idles for 4 s.
func TestIdleTimeIsSharedOutByWhatPipelinesWaitedFor(t *testing.T) {
	a := newAccumulator(16*second, 0)
	a.Add(Span{Kind: Compute, Start: 0, End: 6 * second})
	a.Add(Span{Kind: WaitUpstream, Start: 0, End: 6 * second, Pipeline: 1})
	a.Add(Span{Kind: WaitDownstream, Start: 6 * second, End: 9 * second})
	a.Add(Span{Kind: WaitAverage, Start: 6 * second, End: 9 * second, Pipeline: 2})
	a.Add(Span{Kind: WaitDevice, Start: 0, End: 6 * second, Pipeline: 2})
	f := a.Fractions(10 * second)
	near(t, "busy", f.Busy, 0.6)
	near(t, "wait upstream", f.WaitUpstream, 0.2)
	near(t, "wait downstream", f.WaitDownstream, 0.1)
	near(t, "average", f.Average, 0.1)
	near(t, "idle", f.Idle, 0)
	near(t, "the sum", sum(f), 1)
}

func TestTheWindowForgetsWhatIsOlder(t *testing.T) {
	a := newAccumulator(16*second, 100*second)
	spans(a, 100*second, of(Compute, 8*second))
	near(t, "busy", a.Fractions(108*second).Busy, 1)
	near(t, "busy half of the window later", a.Fractions(116*second-1).Busy, 8./16)
	near(t, "busy a window later", a.Fractions(124*second).Busy, 0)
	a.Add(Span{Kind: Compute, Start: 100 * second, End: 105 * second}) // late, and too old to count
	near(t, "busy after an old span", a.Fractions(125*second).Busy, 0)
	near(t, "busy long after", a.Fractions(1e6*second).Busy, 0)
}

func TestNothingIsKnownBeforeTimeHasPassed(t *testing.T) {
	a := newAccumulator(second, 5*second)
	if f := a.Fractions(5 * second); f != (Fractions{}) {
		t.Errorf("fractions of no time are %+v", f)
	}
	r := NewRate(second)
	near(t, "rate before the first", r.PerSecond(5*second), 0)
	r.Add(5*second, 10)
	near(t, "rate at the first", r.PerSecond(5*second), 0)
}

func TestRateIsThatOfTheWindow(t *testing.T) {
	r := NewRate(16 * second)
	for i := range 41 {
		r.Add(time.Duration(i)*second, 10)
	}
	near(t, "rate", r.PerSecond(40*second+second-1), 160/(16*second-1).Seconds())
	near(t, "rate after a pause", r.PerSecond(100*second), 0)
}

func TestListenersMayBeCalledFromManyGoroutines(t *testing.T) {
	a, rate := NewAccumulator(time.Minute), NewRate(time.Minute)
	var all sync.WaitGroup
	for p := range 4 {
		all.Go(func() {
			for range 1000 {
				now := Now()
				e := Span{Kind: Compute, Pipeline: p, Start: now, End: now + 1}
				a.Add(e)
				rate.Add(now, 1)
				a.Fractions(now)
			}
		})
	}
	all.Wait()
	sum := uint64(0)
	for _, n := range rate.window.values {
		sum += n
	}
	if sum != 3999 { // the first one begins the window
		t.Errorf("counted %d, want 3999", sum)
	}
}
