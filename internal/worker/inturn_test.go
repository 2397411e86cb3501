package worker

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/trace"
)

// TestPassesThatOverlapShareTheirDevice: together they hold it for as long as any of them ran.
func TestPassesThatOverlapShareTheirDevice(t *testing.T) {
	for name, c := range map[string]struct{ spans, want []trace.Span }{
		"none do":             {[]trace.Span{{Start: 0, End: 4}, {Start: 4, End: 6}, {Start: 9, End: 12}}, []trace.Span{{Start: 0, End: 4}, {Start: 4, End: 6}, {Start: 9, End: 12}}},
		"two at once":         {[]trace.Span{{Start: 2, End: 6}, {Start: 2, End: 6}}, []trace.Span{{Start: 4, End: 6}, {Start: 2, End: 4}}},
		"one after the other": {[]trace.Span{{Start: 0, End: 40}, {Start: 20, End: 60}, {Start: 70, End: 80}}, []trace.Span{{Start: 0, End: 30}, {Start: 30, End: 60}, {Start: 70, End: 80}}},
		"one in the other":    {[]trace.Span{{Start: 0, End: 100}, {Start: 10, End: 30}}, []trace.Span{{Start: 10, End: 100}, {Start: 0, End: 10}}},
	} {
		var all []*trace.Span
		for i := range c.spans {
			all = append(all, &c.spans[i])
		}
		inTurn(all)
		for i, got := range c.spans {
			if got != c.want[i] {
				t.Errorf("%s: span %d is from %d to %d, want %d to %d", name, i, got.Start, got.End, c.want[i].Start, c.want[i].End)
			}
		}
	}
}
