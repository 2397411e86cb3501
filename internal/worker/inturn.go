package worker

import (
	"cmp"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
)

// inTurn lays spans of one device one after the other. Queues of a device work beside each other, and passes that overlap share it: each then takes
// longer than it holds the device. Here each has the time for which it did, in the order in which they ended, and as long as they overlapped the device
// is held. Spans that overlap no other stay as they are.
func inTurn(spans []*trace.Span) {
	slices.SortStableFunc(spans, func(a, b *trace.Span) int { return cmp.Compare(a.Start, b.Start) })
	var (
		under []*trace.Span // under way, by their ends
		at    time.Duration // how far time has passed
		laid  time.Duration // where the last span ends that was laid
	)
	held := make(map[*trace.Span]time.Duration, len(spans))
	pass := func(to time.Duration) {
		for len(under) > 0 && at < to {
			next := under[0]
			until := min(next.End, to)
			for _, one := range under {
				held[one] += (until - at) / time.Duration(len(under))
			}
			at = until
			if next.End == until {
				under = under[1:]
				next.Start, next.End = laid, laid+held[next]
				laid = next.End
			}
		}
	}
	for _, one := range spans {
		pass(one.Start)
		if at = one.Start; len(under) == 0 {
			laid = at
		}
		i, _ := slices.BinarySearchFunc(under, one.End, func(s *trace.Span, end time.Duration) int { return cmp.Compare(s.End, end) })
		under = slices.Insert(under, i, one)
	}
	pass(1<<63 - 1)
}
