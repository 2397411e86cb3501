package coordinator

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// When a worker that cannot be heard is given up. A node whose daemon is restarted, or to which the way breaks for a moment, is back
// within the longer bound; one that the members agree on is gone.
const (
	longestGap = 2 * time.Second // between two things that are heard of a worker; a longer one is a break

	lostGaps  = 10                     // times the longest gap, before a worker that is not heard is given up
	leastLost = 5 * time.Second        // but no earlier
	lostDown  = 500 * time.Millisecond // where the members agree that its node is gone
	lostOver  = time.Second            // where nothing that the generation computes can be committed any more

	responseGaps  = 20               // times the longest gap, before a worker whose daemon answers and which does not is killed
	leastResponse = 10 * time.Second // but no earlier, unless response_timeout says less

	stuckSteps = 3           // times the longest step, before workers are taken to wait for one that is not heard
	leastStuck = time.Second // but no earlier

	quietBound = 3 * (control.AskTimeout + agent.PollStatus) // of a node that does not even say that a worker does not answer
	quietDown  = 3 * agent.PollStatus                        // where its members agree that it is gone
)

// nodeState is what is known of a worker's node, beside what is heard of the worker.
type nodeState struct {
	down    bool   // the members agree that it is gone
	removed bool   // it is no member any more
	why     string // of either
}

// takeNodes notes how the nodes of a job's workers are, and which workers have not been heard for too long. A connection may stay open while nobody
// is at its other end.
func (c *Coordinator) takeNodes(o *observed, passed time.Duration) {
	for _, w := range o.workers {
		n, ok := c.node(w.process.Node)
		switch {
		case !ok:
			w.node = nodeState{removed: true, why: "it was removed from the cluster"}
		default:
			w.node = nodeState{down: n.Reach.Down, why: n.Reach.Why}
		}
		if w.process.Node == c.here.Name || !w.lives() || w.phase == unseen || w.process.ID.PID == 0 || !w.cut.IsZero() {
			continue
		}
		w.quiet += passed
		if !ok || w.quiet > quietBound || w.node.down && w.quiet > quietDown {
			w.cut, w.why = c.now().Add(-w.quiet), "it says nothing"
			c.sayAt(zap.WarnLevel, o.ID, "a worker is not heard any more", zap.Stringer("process", w.process), zap.String("error", w.unheard(c.now())))
		}
	}
}

// unheard says for people why a worker is not heard.
func (w *worker) unheard(now time.Time) string {
	why := w.why
	if w.node.why != "" {
		why = w.node.why
	}
	return fmt.Sprintf("node %s cannot be reached for %v: %s", w.process.Node, now.Sub(w.cut).Round(100*time.Millisecond), why)
}

// lostAfter is how long a worker may not be heard before it is given up, if nothing speaks for it.
func (w *worker) lostAfter(l Limits) time.Duration {
	switch {
	case w.node.removed:
		return 0
	case w.node.down:
		return lostDown
	}
	return min(max(leastLost, lostGaps*w.gap), max(leastLost, l.ResponseTimeout))
}

// responseAfter is how long a worker may not answer its daemon, which does. One that has answered within half a second all along is stuck long before
// response_timeout; one that loads, or has taken long at times, gets all of that.
func (w *worker) responseAfter(l Limits) time.Duration {
	if w.phase != training || w.gap == 0 {
		return l.ResponseTimeout
	}
	return min(max(leastResponse, responseGaps*w.gap, w.stuckAfter()), l.ResponseTimeout)
}

// stuckAfter is how long a worker may make no step before it is taken to wait for another.
func (w *worker) stuckAfter() time.Duration {
	longest := w.pace
	if w.status != nil && w.status.Progress.BatchS != nil {
		longest = max(longest, time.Duration(*w.status.Progress.BatchS*float64(time.Second)))
	}
	return max(leastStuck, stuckSteps*longest)
}

// goesOn reports whether a worker makes steps.
func (w *worker) goesOn(now time.Time) bool {
	return w.phase == training && !w.moved.IsZero() && now.Sub(w.moved) < w.stuckAfter()
}

// answering are the workers that can be told something.
func (g *generation) answering() []*worker {
	return g.with(func(w *worker) bool { return w.lives() && w.cut.IsZero() })
}

// unheard are those that cannot.
func (g *generation) unheard() []*worker {
	return g.with(func(w *worker) bool { return w.lives() && !w.cut.IsZero() })
}

// decideCut looks after a job of which workers cannot be heard. While others make steps, so do those: they depend on each other. The
// job is left alone then, unless a node was removed from the cluster: it never answers again, so nothing could be committed any more.
// Else the workers are given up after a bound. It reports false where they change nothing.
func decideCut(w snapshot, j *observed) (decision, bool) {
	unheard, others := j.unheard(), j.answering()
	if len(unheard) == 0 {
		return decision{}, false
	}
	said := unheard[0].unheard(w.now)
	bound := func(at *worker) time.Duration { return at.lostAfter(w.limits) }
	over := j.gone() != nil || !j.abortedAt.IsZero()
	switch {
	case (over || j.sick != "") && len(others) > 0, overdue(w, j) && !over, j.committable() && !over:
		return decision{}, false
	case over:
		bound = func(at *worker) time.Duration { return min(lostOver, at.lostAfter(w.limits)) }
	}
	due := false
	for _, at := range unheard {
		if w.now.Sub(at.cut) >= bound(at) && (!due || at.lostAfter(w.limits) < lostOver) {
			due, said = true, at.unheard(w.now)
		}
	}
	if !due {
		return decision{reason: said}, true
	}
	removed := slices.ContainsFunc(unheard, func(at *worker) bool { return at.node.removed })
	for _, at := range others {
		if !over && !removed && at.goesOn(w.now) {
			return decision{reason: said + "; the job is left alone: its workers elsewhere go on, and commits wait for that node"}, true
		}
	}
	return decision{choice: loseWorkers, reason: said}, true
}

// durable reports whether all shards of a round were reported.
func (o *observed) durable(round uint64) bool {
	return round > 0 && len(o.shards[round]) == o.spec.Shards()
}

// committable reports whether the pending round can be committed now: all its shards were reported, and nobody has found one of them on a node that does
// not answer. Such a node may never answer again.
func (o *observed) committable() bool { return o.durable(o.Pending) && o.unseen != o.Pending }

// lose gives the workers up that are not heard. When their node answers again, they are ended.
func (c *Coordinator) lose(o *observed, why string, now time.Time) {
	for _, w := range o.unheard() {
		if w.unfollow != nil {
			w.unfollow()
		}
		c.sight(w.process.Node).sweepAt = now
		w.cause, w.lost, w.phase, w.ended, w.cut = w.unheard(now), true, exited, now, time.Time{}
	}
	c.Say(o.ID, "workers are given up with their node", zap.String("reason", why), zap.Uint64("generation", o.Generation))
	before := o.hold
	o.settle(now)
	c.sayHold(o.ID, before, o.hold)
}
