package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/placer"
)

// How long it counts what was seen on a node of that a job reads.
const (
	sightAge   = 30 * time.Second // of a node that has everything
	lookAgain  = 10 * time.Second // between two looks at one that has not, while the job waits
	sightBound = 15 * time.Second // of one look
)

// hostSight is what was seen on a node of that a job reads.
type hostSight struct {
	agent.Sight

	at   time.Time // when; zero: not yet
	busy bool      // somebody looks
}

// lacking says of nodes what they lack of that the job reads, as far as somebody has looked. A round has all that a model begins with.
func (o *observed) lacking() map[string]placer.Lack {
	all := map[string]placer.Lack{}
	for node, s := range o.sights {
		l := placer.Lack{Data: s.Data}
		if o.LastCommitted() == nil {
			l.Model = s.Model
		}
		if l != (placer.Lack{}) {
			all[node] = l
		}
	}
	return all
}

// looked reports whether it is known that a placement's nodes have what the job reads there. Where it is not, somebody looks now, and the job waits for
// that. One that goes on where it was is not asked: its workers have found everything.
func (c *Coordinator) looked(o *observed, p placement, now time.Time) bool {
	known := true
	if len(c.nodes()) < 2 || len(p) == 0 || placed(o.Job) && sameNodes(p, o.place()) {
		return known
	}
	for i, at := range p {
		if i > 0 && i < len(p)-1 && o.LastCommitted() != nil {
			continue // it reads nothing
		}
		if s := o.sights[at.Node]; s == nil || s.at.IsZero() || now.Sub(s.at) > sightAge {
			known = false
			c.look(o, at.Node)
		}
	}
	return known
}

// sameNodes reports whether the ends of two placements are on the same nodes.
func sameNodes(p, other placement) bool {
	return len(p) == len(other) && p[0].Node == other[0].Node && p[len(p)-1].Node == other[len(p)-1].Node
}

// lookAgain looks again at nodes without something that a waiting job reads: somebody may put it there.
func (c *Coordinator) lookAgain(o *observed, now time.Time) {
	for node := range o.want.Lacking {
		if s := o.sights[node]; now.Sub(s.at) > lookAgain && c.holdsNode(node) {
			c.look(o, node)
		}
	}
}

// holdsNode reports whether a node may have stages now.
func (c *Coordinator) holdsNode(name string) bool {
	n, ok := c.node(name)
	return ok && c.shut(n) == ""
}

// look finds out what a node lacks of that a job reads.
func (c *Coordinator) look(o *observed, node string) {
	n, ok := c.node(node)
	s := o.sights[node]
	if s == nil {
		s = &hostSight{}
		if o.sights == nil {
			o.sights = map[string]*hostSight{}
		}
		o.sights[node] = s
	}
	if s.busy || !ok {
		return
	}
	s.busy = true
	admitted := o.spec
	c.spawn(func() {
		ctx, cancel := context.WithTimeout(c.background, sightBound)
		defer cancel()
		found, err := n.Agent.Look(ctx, admitted)
		if err != nil {
			found = agent.Sight{Data: fmt.Sprintf("nobody can say whether the data are there: %v", err)}
		}
		c.call(func() { s.Sight, s.at, s.busy = found, c.now(), false })
	})
}
