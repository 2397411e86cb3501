package pipeline

import (
	"sync"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
)

// Slow links between devices change when work is done and nothing of what is computed; within a device there are none.
func TestSlowLinksComputeTheSequentialModelToTheBit(t *testing.T) {
	for _, r := range []*run{
		{schedule: "afp", stages: 3, pipelines: 2, micros: 3, rounds: 3, clip: 0.05, tied: 3, tau: 1},
		{schedule: "1f1b", stages: 2, pipelines: 2, micros: 4, rounds: 2, clip: 0.05, tau: 2},
	} {
		t.Run(r.schedule, func(t *testing.T) {
			var mu sync.Mutex
			var spans []trace.Span
			network := wire.NewNetwork(func(int, int) wire.Shape {
				return wire.Shape{Latency: 200 * time.Microsecond, Bandwidth: 1e6}
			})
			defer network.Close()
			r.change = func(c *Config) {
				c.Network = network
				c.Events.Trace = func(e trace.Span) {
					mu.Lock()
					spans = append(spans, e)
					mu.Unlock()
				}
			}
			r.train(t)
			r.compare(t, r.sequential(t))
			frames := 0
			for _, e := range spans {
				if e.Kind == trace.Send && e.Micro >= 0 {
					frames++
					if e.End-e.Start < 200*time.Microsecond {
						t.Errorf("a frame was on its way for %v: %+v", e.End-e.Start, e)
					}
				}
			}
			steps := int(r.rounds) * r.tau
			ties := 2 * len(tiesOf(r.fakes[[2]int{0, 0}])) // each end sends each of them
			if want := r.pipelines * steps * (2*(r.stages-1)*r.micros + ties); frames != want {
				t.Errorf("%d frames passed lines, want %d", frames, want)
			}
		})
	}
}
