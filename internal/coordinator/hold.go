package coordinator

import (
	"context"
	"time"

	"github.com/avgpipe/avgpipe/internal/obstacle"
)

// probeBound is how long it may take to find out whether an obstacle has passed, before the job is decided about again.
const probeBound = 5 * time.Second

// hold is an obstacle that a job without a process waits for. It is observed and not replicated: it is a fact about this host,
// Raft may share the disk that is full, and the next daemon meets the same obstacle when it places the job.
type hold struct {
	obstacle obstacle.Obstacle
	tries    int       // probes, and placements that met an obstacle again
	probeAt  time.Time // when it is looked at next
	passed   bool
}

// waitFor makes the job wait until an obstacle has passed. Pauses grow until the job trains again.
func (o *observed) waitFor(what *obstacle.Obstacle, now time.Time) {
	h := &hold{obstacle: *what}
	if o.hold != nil {
		h.tries = o.hold.tries + 1
	}
	h.probeAt = now.Add(obstacle.Pause(h.tries))
	o.hold = h
}

// waits reports whether the job waits for an obstacle to pass, and has no process meanwhile.
func (o *observed) waits() bool {
	return o.hold != nil && (o.phase == absent || o.phase == exited) && !o.tunes()
}

// view is what decide knows of a hold. A nil one is none.
func (h *hold) view() holdView {
	if h == nil {
		return holdView{}
	}
	return holdView{text: h.obstacle.String(), passed: h.passed, probeAt: h.probeAt}
}

// probe looks whether what the job waits for has passed, for a bounded time.
func (a *act) probe(ctx context.Context) func(*observed) {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	err := a.agent.Passed(ctx, a.hold.obstacle)
	return func(o *observed) {
		if o.hold != a.hold {
			return // a person was faster
		}
		o.hold.passed = err == nil
		o.hold.tries++
		o.hold.probeAt = time.Now().Add(obstacle.Pause(o.hold.tries))
	}
}
