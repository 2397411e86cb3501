package coordinator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
)

const (
	regrowAgain = 10 * time.Minute // after a try that found a node without the data
	leastLeft   = 5 * time.Minute  // that a job must have before it, else it is not worth a restart
)

// takeGrowth notes which jobs that were split into fewer stages have had room for all of theirs for as long as a node must be gone before a job is split:
// they stop at a round, and go on with their own spec. Where others wait for room, that is theirs.
func (c *Coordinator) takeGrowth(s snapshot) {
	crowded := false
	for _, o := range s.jobs {
		crowded = crowded || o.State == cluster.Queued || o.waits()
	}
	for _, o := range s.jobs {
		if o.original == nil || !placed(o.Job) {
			o.grow, o.roomSince = "", time.Time{}
			continue
		}
		fits := !crowded && !s.stopping && !o.Cancelling && c.excluded(o.place()) == "" && c.hasRoomToGrow(o, s.rooms)
		switch {
		case !fits:
			o.grow, o.roomSince = "", time.Time{}
		case o.roomSince.IsZero():
			o.roomSince = s.now
		case o.grow == "" && s.now.Sub(o.roomSince) >= s.limits.ResplitAfter && o.mayGrow(s.now):
			c.considerGrowth(o, o.roomsWithOwn(c, s.rooms))
		}
	}
}

// originalOf is what a job was submitted with that has fewer stages since a loss; nil: it has its own.
func (c *Coordinator) originalOf(o *observed, s *spec.Spec) *spec.Spec {
	original, err := s.Original()
	if err != nil {
		c.log.Warn("a job keeps its fewer stages", zap.String("job", o.ID), zap.Error(err))
	}
	return original
}

// mayGrow reports whether a job that trains may be stopped to go on with more stages.
func (o *observed) mayGrow(now time.Time) bool {
	if o.growing || now.Before(o.growAt) || o.phase() != training || o.State != cluster.Running || o.acting {
		return false
	}
	left := o.status.Progress.ETAS
	return left == nil || *left >= leastLeft.Seconds()
}

// roomsWithOwn are rooms as they are once the job gives up its place.
func (o *observed) roomsWithOwn(c *Coordinator, rooms []placer.Node) []placer.Node {
	return o.withOwn(rooms, o.place(), c.fitting(o, c.all()))
}

// hasRoomToGrow reports whether there is room for all stages of a job.
func (c *Coordinator) hasRoomToGrow(o *observed, rooms []placer.Node) bool {
	want := c.wanted(o.original, c.unfit(o.original))
	want.Lacking = o.lacking()
	return placer.Fits(want, o.roomsWithOwn(c, rooms))
}

// considerGrowth has a job grow once it was seen that the nodes which it would get have its data.
func (c *Coordinator) considerGrowth(o *observed, rooms []placer.Node) {
	o.growing = true
	original, lacking, resumes, id := o.original, o.lacking(), o.LastCommitted() != nil, o.ID
	c.spawn(func() {
		err := c.roomFor(c.background, original, rooms, lacking, resumes)
		c.call(func() {
			o.growing = false
			if err != nil {
				o.growAt = c.now().Add(regrowAgain)
				c.log.Info("a job keeps its fewer stages", zap.String("job", id), zap.Error(err))
				return
			}
			o.grow = fmt.Sprintf("there is room for its %s again", original.Shape())
		})
	})
}

// regrow has a job that has stopped go on with the stages that it had at first.
func (a *act) regrow(ctx context.Context) (func(*observed), error) {
	original := *a.original
	why := fmt.Sprintf("split again into %d stages, from %d: %s", original.Stages(), a.spec.Stages(), a.decision.reason)
	if original.Groups() != a.spec.Groups() {
		why = fmt.Sprintf("%s: %s", changes("", a.spec, &original), a.decision.reason)
	}
	original.Why = append(slices.Clip(original.Why), why)
	return a.requeue(ctx, &original, why)
}
