package worker

import (
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
)

// worked is how many batches of a run the passes between two moments come to. The run did so many in all. A pass of which a part
// lies between the moments counts in part; passes count by the time that those of their stage and kind take in the mean.
func worked(spans []trace.Span, from, to time.Duration, batches int) float64 {
	type pass struct {
		stage int
		work  trace.Work
	}
	type sum struct {
		ran, inside  int           // in all, and from begin to end between the moments
		took, within time.Duration // those inside; all parts between the moments
	}
	sums := map[pass]*sum{}
	for _, e := range spans {
		if e.Kind != trace.Compute {
			continue
		}
		of := pass{e.Stage, e.Work}
		if sums[of] == nil {
			sums[of] = &sum{}
		}
		s := sums[of]
		s.ran++
		s.within += max(0, min(e.End, to)-max(e.Start, from))
		if e.Start >= from && e.End <= to {
			s.inside++
			s.took += e.End - e.Start
		}
	}
	within, each := 0.0, 0.0
	for _, s := range sums {
		if s.inside > 0 {
			within += s.within.Seconds()
			each += s.took.Seconds() / float64(s.inside) * float64(s.ran) / float64(batches)
		}
	}
	if each == 0 {
		return 0
	}
	return within / each
}
