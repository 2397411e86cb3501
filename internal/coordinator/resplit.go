package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/words"
)

const (
	resplitAgain = 30 * time.Second // after a try that found no way
	spareSoon    = 10 * time.Minute // for a place of another job that is expected to be free within this, a job keeps its stages
)

// bereft says which nodes of a placement are gone, so that what ran there cannot go on as it was; "": nobody knows that. A node that can only not
// be reached may be cut off, and its workers may make progress. So either another node of the placement answers, whose worker has ended, and workers
// train together or not at all; or all of them were removed, which a person has decided. forGood: one of them was removed, or has been gone for long enough
// that the job may have fewer stages.
func (c *Coordinator) bereft(p placement, now time.Time) (which string, forGood bool) {
	var gone []string
	down, left := 0, 0
	long := c.config.Limits().ResplitAfter
	for _, name := range p.nodes() {
		n, member := c.node(name)
		drained := n.Draining
		n.Draining = false // it answers
		switch {
		case !member:
			gone, forGood = append(gone, fmt.Sprintf("node %s was removed from the cluster", name)), true
		case n.Reach.Down && now.Sub(n.Reach.Since) >= long:
			gone, down, forGood = append(gone, fmt.Sprintf("node %s is gone for more than %v: %s", name, long, n.Reach.Why)), down+1, true
		case n.Reach.Down && !drained: // else somebody expects it back
			gone, down = append(gone, fmt.Sprintf("node %s is gone: %s", name, n.Reach.Why)), down+1
		case c.shut(n) != "":
			return "", false
		default:
			left++
		}
	}
	if left == 0 && down > 0 {
		return "", false
	}
	return strings.Join(gone, "; "), forGood
}

// takeLoss notes whether a job without workers has lost nodes; one of one group, whether for good.
func (c *Coordinator) takeLoss(o *observed, now time.Time) {
	before := o.forGood
	o.bereft, o.forGood = "", false
	if !o.lives() && o.Generation > 0 {
		o.bereft, o.forGood = c.bereft(o.place(), now)
	}
	if o.spec.Groups() == 1 && !o.forGood {
		o.bereft = ""
	}
	if o.bereft == "" || o.forGood && !before { // there is more to try
		o.unsplit, o.splitAt = "", time.Time{}
	}
}

// decideSplit has a job that has lost a node, and for which no other has room, go on with fewer groups of pipelines at once: the others would stand still. It goes on with fewer
// stages once the node is gone for good and no room is expected soon. It waits for its turn.
func decideSplit(w snapshot, j *observed, v *placer.Verdict) (decision, bool) {
	soon := !v.Before.IsZero() && v.Before.Sub(w.now) < spareSoon
	stages := j.forGood && !soon
	switch {
	case j.bereft == "" || j.spec.Whole() != "" || w.now.Before(j.splitAt):
		return decision{}, false
	case v.Start && v.Want.Whole == "", !v.Start && v.Behind != "", j.spec.Groups() == 1 && !stages:
		return decision{}, false
	}
	return decision{choice: resplit, stages: stages, reason: fmt.Sprintf("%s, and no other has room for %s", j.bereft, j.spec.Shape())}, true
}

// unsplitReason is what a reason of a job ends with that has lost a node and keeps its groups and stages.
func (o *observed) unsplitReason() string {
	why := o.unsplit
	if whole := o.spec.Whole(); whole != "" {
		why = whole
	}
	if o.bereft == "" || why == "" {
		return ""
	}
	keeps := "its model is not split anew"
	if o.spec.Groups() > 1 {
		keeps = "it does not go on with fewer groups"
	}
	return fmt.Sprintf("; %s; %s: %s", o.bereft, keeps, why)
}

// resplit has a job go on with as many groups of pipelines, and as many stages, as there is room for now, from the newest round that is whole. Where no number of them
// has room, or no round can be read, nothing changes.
func (a *act) resplit(ctx context.Context) (func(*observed), error) {
	fewer, no := a.fewer(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if no != "" {
		a.log.Info("a job is not split anew", zap.String("job", a.ID), zap.String("why", no))
		return func(o *observed) { o.unsplit, o.splitAt = no, a.now().Add(resplitAgain) }, nil
	}
	return a.requeue(ctx, fewer, fmt.Sprintf("%s: %s", changes("split anew", a.spec, fewer), a.decision.reason))
}

// changes says for people how the groups of pipelines, or else the stages, become others.
func changes(split string, from, to *spec.Spec) string {
	if from.Groups() != to.Groups() {
		return fmt.Sprintf("goes on with %s of pipelines, from %d, of %s each", words.Count(to.Groups(), "group"), from.Groups(), words.Count(to.Job.Shared(), "pipeline"))
	}
	return fmt.Sprintf("%s, from %d stages into %d", split, from.Stages(), to.Stages())
}

// fewer is the spec of the job with the most groups of pipelines, and the most stages where those may be fewer, for which there is room and that a round can be read for; or
// it says why there is none.
func (a *act) fewer(ctx context.Context) (found *spec.Spec, no string) {
	for s, err := range a.spec.Fewer(a.facts(a.rooms), a.decision.stages, a.decision.reason) {
		if err == nil {
			err = a.readable(ctx, int(s.Job.Pipelines))
		}
		if err == nil {
			err = a.roomFor(ctx, s, a.rooms, a.want.Lacking, a.LastCommitted() != nil)
		}
		if err == nil {
			return s, ""
		}
		no = err.Error() // that of the fewest says the most
	}
	return nil, no
}

// readable says why none of the job's rounds could be resumed from now, with so many pipelines. What is damaged is given up when the job is placed.
func (a *act) readable(ctx context.Context, pipelines int) error {
	if len(a.Committed) == 0 {
		return nil
	}
	trained := make([]*cluster.Manifest, len(a.Committed))
	for i, m := range a.Committed {
		trained[i] = m.Reduced(pipelines).Trained()
	}
	m, faults, err := NewestWhole(ctx, a.holders(a.ID, trained, a.away, agent.Shards.Size).one, trained, isDamaged)
	if err == nil && m == nil {
		err = errors.Join(faults...)
	}
	return err
}

// facts are what rooms have for a job.
func (c *Coordinator) facts(rooms []placer.Node) (f spec.Facts) {
	for _, room := range rooms {
		n, member := c.node(room.Name)
		if room.Excluded != "" || !member {
			continue
		}
		h := spec.Host{Name: room.Name, Cores: len(room.Cores)}
		if room.All.Bytes > 0 {
			h.MemoryBytes = max(room.Bytes, 1)
		}
		for _, g := range n.usable() {
			if slices.Contains(room.GPUs, g.UUID) {
				f.GPUs = append(f.GPUs, g)
			}
		}
		f.Hosts = append(f.Hosts, h)
		if h.Cores >= f.Cores {
			f.Cores, f.MemoryBytes = h.Cores, h.MemoryBytes
		}
	}
	return f
}

// roomFor says why a job of a spec has no room among rooms, on nodes that have what it reads. resumes: it goes on from a round.
func (c *Coordinator) roomFor(ctx context.Context, s *spec.Spec, rooms []placer.Node, lacking map[string]string, resumes bool) error {
	want, looked := c.wanted(s, c.unfit(s)), map[string]bool{}
	if want.Lacking = maps.Clone(lacking); want.Lacking == nil {
		want.Lacking = map[string]string{}
	}
	for {
		p, err := placer.Place(want, rooms, nil)
		if err != nil {
			return fmt.Errorf("%s: it takes %s: %w", words.Count(s.Stages(), "stage"), want.Need(), err)
		}
		missing := false
		for _, seat := range p.Seats {
			if looked[seat.Node] {
				continue
			}
			looked[seat.Node] = true
			seen, err := c.seenOn(ctx, seat.Node, s)
			if err != nil {
				return err
			}
			if lack := lackOf(seen, resumes); lack != "" {
				want.Lacking[seat.Node], missing = lack, true
			}
		}
		if !missing {
			return nil
		}
	}
}

// seenOn is what is seen on a node now of that a job reads.
func (c *Coordinator) seenOn(ctx context.Context, node string, s *spec.Spec) (agent.Sight, error) {
	n, member := c.node(node)
	if !member {
		return agent.Sight{}, noNode{name: node}.err()
	}
	ctx, cancel := context.WithTimeout(ctx, sightBound)
	defer cancel()
	found, err := n.Agent.Look(ctx, s)
	if err != nil {
		return agent.Sight{}, fmt.Errorf("look for its data on node %s: %w", node, err)
	}
	return found, nil
}

// requeue has a job that has no workers wait for room with another spec.
func (a *act) requeue(ctx context.Context, s *spec.Spec, why string) (func(*observed), error) {
	text, err := spec.Encode(s)
	if err != nil {
		return nil, err
	}
	if a.State != cluster.Queued { // else a spec does not change
		if err := a.propose(ctx, &cluster.SetState{Job: a.ID, Generation: a.Generation, State: cluster.Queued, Reason: why}); err != nil {
			return nil, err
		}
	}
	if err := a.propose(ctx, &cluster.ResumeJob{Job: a.ID, Generation: a.Generation, Reason: why, Spec: text}); err != nil {
		return nil, err
	}
	a.sayAt(zap.WarnLevel, a.ID, "its stages change", zap.String("reason", why))
	return func(o *observed) {
		o.hold = &hold{obstacle: obstacle.Obstacle{Kind: obstacle.Node, Text: why}, passed: true}
		o.grow, o.roomSince = "", time.Time{}
	}, nil
}
