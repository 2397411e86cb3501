package worker

import (
	"math"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/schedule"
)

// TestWorkedCountsPartsOfPasses: ten batches of a forward of 1 s and a backward of 2 s, end to end. Any window holds a batch for
// each 3 s of it, wherever it begins.
func TestWorkedCountsPartsOfPasses(t *testing.T) {
	var spans []trace.Span
	for at := time.Duration(0); at < 30*time.Second; at += 3 * time.Second {
		spans = append(
			spans,
			trace.Span{Kind: trace.Compute, Work: schedule.Forward, Start: at, End: at + time.Second},
			trace.Span{Kind: trace.WaitUpstream, Work: schedule.Forward, Start: at, End: at + time.Second},
			trace.Span{Kind: trace.Compute, Work: schedule.Backward, Start: at + time.Second, End: at + 3*time.Second},
		)
	}
	for _, window := range [][2]float64{{0, 30}, {3, 9}, {4, 16}, {4.5, 15.5}, {6.25, 20}, {1, 29.5}} {
		from, to := time.Duration(window[0]*1e9), time.Duration(window[1]*1e9)
		if got, want := worked(spans, from, to, 10), (window[1]-window[0])/3; math.Abs(got-want) > 1e-9 {
			t.Errorf("from %v to %v: %v batches, want %v", from, to, got, want)
		}
	}
	if got := worked(nil, 0, time.Second, 1); got != 0 {
		t.Errorf("no span is %v batches", got)
	}
}
