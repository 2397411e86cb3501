package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
)

// How long it counts what was seen on a node of that a job reads.
const (
	sightAge   = 30 * time.Second // of a node that has everything
	lookAgain  = 10 * time.Second // between two looks at one that has not, while the job waits
	fetchAge   = time.Second      // of a node to which they come
	sightBound = 15 * time.Second // of one look
)

// hostSight is what was seen on a node of that a job reads.
type hostSight struct {
	agent.Sight

	at   time.Time // when; zero: not yet
	busy bool      // somebody looks
}

// lacking says of nodes what they lack of that the job reads, as far as somebody has looked. A round has all that a model begins with.
func (o *observed) lacking() map[string]string {
	all := map[string]string{}
	for node, s := range o.sights {
		if lack := lackOf(s.Sight, o.LastCommitted() != nil); lack != "" {
			all[node] = lack
		}
	}
	return all
}

// lackOf says why no stage can be on a node of which this was seen; "": one can. Stages between the first and the last feed no data, but their workers
// take from them how long an epoch and an evaluation are, and what goes with the model, which is the same in all shards of a round.
func lackOf(s agent.Sight, resumes bool) string {
	if resumes {
		return s.Data
	}
	return cmp.Or(s.Data, s.Model)
}

// looking says what the job waits for until it is known that a placement's nodes have what it reads there; "": nothing. Where it is not known,
// somebody looks now. One that goes on where it was is not asked: its workers have found everything. But of what comes from elsewhere a node may have
// lost its copy.
func (c *Coordinator) looking(o *observed, p placement, now time.Time) (waits string) {
	fetches := len(o.spec.Remote) > 0
	if len(p) == 0 || !fetches && (len(c.nodes()) < 2 || placed(o.Job) && p.onNodesOf(o.place())) {
		return ""
	}
	for _, at := range p {
		switch s := o.sights[at.Node]; {
		case s == nil || s.at.IsZero() || now.Sub(s.at) > sightAge:
			waits = cmp.Or(waits, "finding out whether its data are there")
			c.look(o, at.Node)
		case fetches && s.Data != "":
			waits = fmt.Sprintf("%s: %s", at.Node, s.Data)
			if now.Sub(s.at) > lookAgain {
				c.look(o, at.Node)
			}
		case s.Fetching != "":
			waits = fmt.Sprintf("%s: %s", at.Node, s.Fetching)
			if now.Sub(s.at) > fetchAge {
				c.look(o, at.Node)
			}
		}
	}
	return waits
}

// hopeless says that what the job reads from elsewhere will never come, to no node; "": it may.
func (c *Coordinator) hopeless(o *observed) (why string) {
	if len(o.sights) == 0 || len(o.spec.Remote) == 0 {
		return ""
	}
	for _, n := range c.open() {
		s := o.sights[n.Name]
		if s == nil || s.Gone == "" {
			return ""
		}
		why = s.Gone
	}
	return why
}

// lacksAt reports whether a node of a placement lacks what a job reads that has its data from elsewhere: it may have lost its copy.
func (o *observed) lacksAt(p placement) bool {
	return len(o.spec.Remote) > 0 && slices.ContainsFunc(p, func(at stagePlace) bool { return o.want.Lacking[at.Node] != "" })
}

// onNodesOf reports whether all nodes of a placement have stages in another one.
func (p placement) onNodesOf(other placement) bool {
	return !slices.ContainsFunc(p, func(at stagePlace) bool {
		return !slices.ContainsFunc(other, func(was stagePlace) bool { return was.Node == at.Node })
	})
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
