package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// transfersOf observes a 1f1b of so many stages, all of them here.
func transfersOf(t testing.TB, stages int) transfers {
	t.Helper()
	a := setup(t, stages, 2, func(j *job.Job) { j.Schedule = "1f1b" })
	plan, _, err := schedule.Generate("1f1b", schedule.Request{Devices: stages, MicroBatches: int(a.Spec.Job.MicroBatches)})
	if err != nil {
		t.Fatal(err)
	}
	return newTransfers(a, plan)
}

const ms = time.Millisecond

// hand has a message made at one time and waited for from another on until it arrives.
func hand(t transfers, from, to int, work schedule.Kind, step uint64, made, since, arrives time.Duration) {
	wait := trace.WaitUpstream
	if work != schedule.Forward {
		wait = trace.WaitDownstream
	}
	t.span(trace.Span{Kind: trace.Compute, Work: work, Stage: from, Pipeline: 1, Micro: 1, Step: step, Start: made - ms, End: made})
	t.span(trace.Span{Kind: wait, Work: work, Stage: to, Pipeline: 1, Micro: 1, Step: step, Start: since, End: arrives})
}

func took(t transfers, link, to int, now time.Duration) float64 {
	if seconds := t[way{link, to}].seconds(now); seconds != nil {
		return *seconds
	}
	return 0
}

func TestMessagesThatWereWaitedForSayWhatTheirLinkTakes(t *testing.T) {
	x := transfersOf(t, 3)
	hand(x, 0, 1, schedule.Forward, 0, 10*ms, 5*ms, 12*ms)
	hand(x, 2, 1, schedule.Backward, 0, 30*ms, 25*ms, 37*ms)
	hand(x, 1, 0, schedule.BackwardInput, 0, 50*ms, 45*ms, 54*ms)
	for _, c := range []struct {
		link, way int
		want      float64
	}{{0, down, 0.002}, {0, up, 0.004}, {1, down, 0}, {1, up, 0.007}} {
		if got := took(x, c.link, c.way, time.Second); got != c.want {
			t.Errorf("link %d, direction %d: a message takes %v s, want %v", c.link, c.way, got, c.want)
		}
	}
}

// What was made before anybody waited may have been there, or behind other messages, for any time: it says nothing.
func TestMessagesThatNobodyWaitedForSayNothing(t *testing.T) {
	x := transfersOf(t, 2)
	hand(x, 0, 1, schedule.Forward, 0, 10*ms, 11*ms, 40*ms)
	// The op is of another step than the wait.
	x.span(trace.Span{Kind: trace.WaitUpstream, Stage: 1, Pipeline: 1, Micro: 1, Step: 1, Start: 5 * ms, End: 40 * ms})
	// Weight halves and steps wait for no message, norms are of no micro-batch, and beyond the ends are no links.
	hand(x, 1, 0, schedule.BackwardWeight, 0, 10*ms, 5*ms, 40*ms)
	x.span(trace.Span{Kind: trace.WaitDownstream, Work: schedule.Backward, Stage: 0, Micro: -1, Start: 5 * ms, End: 40 * ms})
	hand(x, 1, 2, schedule.Forward, 0, 10*ms, 5*ms, 40*ms)
	hand(x, 0, -1, schedule.Backward, 0, 10*ms, 5*ms, 40*ms)
	for to := range 2 {
		if got := x[way{0, to}].seconds(time.Second); got != nil {
			t.Errorf("direction %d: a message takes %v s, and none was waited for", to, *got)
		}
	}
}

func TestTransfersShowTheFastestQuarterOfTheWindow(t *testing.T) {
	x := transfersOf(t, 2)
	for i := range 2 * recentTransfers { // the older half is forgotten
		at, long := time.Duration(i)*100*ms, 50*ms
		if i >= recentTransfers {
			long = time.Duration(1+i%4) * ms
		}
		hand(x, 0, 1, schedule.Forward, uint64(i), at, at-ms, at+long)
	}
	newest := 2 * recentTransfers * 100 * ms
	if got := took(x, 0, down, newest); got != 0.001 {
		t.Errorf("of messages of 1 to 4 ms the fastest quarter takes %v s", got)
	}
	if got := x[way{0, down}].seconds(newest + window); got != nil {
		t.Errorf("a window later a message takes %v s, want none", *got)
	}
}

func TestObservingTransfersAllocatesNothing(t *testing.T) {
	x := transfersOf(t, 2)
	step := uint64(0)
	if n := envtest.Allocations(100, func() {
		hand(x, 0, 1, schedule.Forward, step, 10*ms, 5*ms, 12*ms)
		step++
	}); n > 0 {
		t.Errorf("%v allocations a message", n)
	}
}

// BenchmarkObserveMessage is what a message costs: the end of the op that made it, and the wait for it.
func BenchmarkObserveMessage(b *testing.B) {
	x := transfersOf(b, 2)
	for step := uint64(0); b.Loop(); step++ {
		hand(x, 0, 1, schedule.Forward, step, 10*ms, 5*ms, 12*ms)
	}
}

// Slow lines between emulated devices show, each way, and those within a device do not.
func TestStatusShowsSlowLinks(t *testing.T) {
	const latency = 4 * ms
	a := setup(t, 2, 2, func(j *job.Job) {
		j.Model.Config["n_layer"] = 4
		j.Train.EvalEvery, j.Schedule, j.Chunks = 100, "zb-v", 2
		j.Devices.Kind = job.KindEmulated
		j.Devices.Emulated.Forward = []time.Duration{ms}
		j.Devices.Emulated.Link.Latency = []time.Duration{latency}
	})
	plan, _, err := schedule.Generate("zb-v", schedule.Request{Devices: 2, Chunks: 2, MicroBatches: 2})
	if err != nil {
		t.Fatal(err)
	}
	a.Plan, a.Stages = plan.Lines(), slices.Repeat(a.Stages[:1], plan.Stages())
	o := train(t, a, nil)
	links := o.status.Progress.LinkStatus
	if len(links) != 3 {
		t.Fatalf("status has %d links (the worker ended with %v), want 3", len(links), o.err)
	}
	for _, l := range links {
		within := l.Link == 1 // the turn of the V
		for _, seconds := range []*float64{l.DownS, l.UpS} {
			switch {
			case within && seconds != nil:
				t.Errorf("a message from device 1 to itself takes %v s", *seconds)
			case !within && (seconds == nil || *seconds < latency.Seconds()):
				t.Errorf("link %d: %v, %v; want %v at least", l.Link, l.DownS, l.UpS, latency)
			}
		}
		if l.MessageBytes != 2*16*16*4 { // samples, tokens, width, bytes
			t.Errorf("link %d: a message has %d bytes", l.Link, l.MessageBytes)
		}
	}
}
