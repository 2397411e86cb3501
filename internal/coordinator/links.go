package coordinator

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/placer"
)

// When the links between nodes are measured.
const (
	linkAge   = 10 * time.Minute // of a measurement before it is made again
	linkRetry = time.Minute      // after one that failed
	linkBound = 5 * time.Second  // of one; it takes less than a second
	linkPause = time.Second      // after one, where there are more than linkFew nodes
	linkFew   = 16
)

// Link is the link between two nodes, as it was measured, or as far as a job's messages show what it carries.
type Link struct {
	placer.Link
	At time.Time // when
}

// links are what is known of the links between nodes. They belong to the coordinator's goroutine.
type links struct {
	known  map[[2]string]Link      // a change makes a new one: it is published
	failed map[[2]string]time.Time // when a measurement failed
	busy   bool                    // one is being made: two at once would measure each other
	next   time.Time               // none is begun before
	of     []Node                  // the nodes when those were forgotten that are no members
}

// age is how old a measurement may become on so many nodes, so that no more than a third of the time goes to measuring.
func age(nodes int) time.Duration {
	return max(linkAge, 3*linkPause*time.Duration(nodes*(nodes-1)/2))
}

// pair names the link between two nodes.
func pair(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// due is the next pair to measure, of these nodes. Pairs that carry a job are left out: a measurement would show what the job leaves, and slow it.
func (l *links) due(now time.Time, nodes []string, carry map[[2]string]bool) (next [2]string, ok bool) {
	nodes = slices.Sorted(slices.Values(nodes))
	old := age(len(nodes))
	for i, a := range nodes {
		for _, b := range nodes[i+1:] {
			p := pair(a, b)
			known, measured := l.known[p]
			measured = measured && !known.Assumed && !known.AtLeast
			switch failed, late := l.failed[p]; {
			case carry[p], late && now.Sub(failed) < linkRetry, measured && now.Sub(known.At) < old:
				continue
			case !measured:
				return p, true
			case !ok:
				next, ok = p, true
			}
		}
	}
	return next, ok
}

// carried are the pairs of nodes that both have workers of one job.
func carried(jobs []*observed) map[[2]string]bool {
	carry := map[[2]string]bool{}
	for _, o := range jobs {
		if !o.holdsCores() {
			continue
		}
		at := o.place().nodes()
		if o.taking != nil {
			at = o.taking.nodes()
		}
		for i, a := range at {
			for _, b := range at[i+1:] {
				carry[pair(a, b)] = true
			}
		}
	}
	return carry
}

// measureLinks begins to measure a link, where one is due and no other is being measured.
func (c *Coordinator) measureLinks(s snapshot) {
	c.forgetLinks()
	nodes := c.nodes()
	if len(nodes) < 2 || c.ways.busy || s.stopping || s.now.Before(c.ways.next) {
		return
	}
	agents, names := map[string]agent.Agent{}, make([]string, 0, len(nodes))
	away := c.unreached()
	for _, n := range nodes {
		if away[n.Name] == "" {
			names = append(names, n.Name)
			agents[n.Name] = n.Agent
		}
	}
	p, ok := c.ways.due(s.now, names, carried(s.jobs))
	if !ok {
		return
	}
	c.ways.busy = true
	from, to := agents[p[0]], p[1]
	c.spawn(func() {
		ctx, cancel := context.WithTimeout(c.background, linkBound)
		defer cancel()
		measured, err := from.Probe(ctx, to)
		c.call(func() { c.noteLink(p, measured, err) })
	})
}

// noteLink keeps what was measured. Of a measurement that failed the older one stays.
func (c *Coordinator) noteLink(p [2]string, measured agent.Link, err error) {
	c.ways.busy = false
	if len(c.nodes()) > linkFew {
		c.ways.next = c.now().Add(linkPause)
	}
	at := zap.Strings("nodes", p[:])
	if err != nil || measured.BytesPerSecond <= 0 {
		if _, again := c.ways.failed[p]; !again {
			c.log.Info("a link is not measured yet", at, zap.Error(err))
		}
		c.ways.failed[p] = c.now()
		return
	}
	link := Link{placer.Link{BitsPerSecond: 8 * measured.BytesPerSecond, RoundTrip: measured.RTT}, c.now()}
	c.ways.known = maps.Clone(c.ways.known)
	c.ways.known[p] = link
	delete(c.ways.failed, p)
	c.log.Info("a link was measured", at, zap.Stringer("link", link.Link))
}

// What is noted of a job's messages, as a multiple of what is known: each change copies what is published.
const (
	moreBits       = 1.05
	otherRoundTrip = 1.25
)

// noteTraffic keeps what the messages of a job show of the links between its nodes, which nobody measures meanwhile: what they reach is the least that a link
// carries, and probes beside them tell its round trip. The mean of both ways counts, in which clocks that are seen wrong cancel out.
func (c *Coordinator) noteTraffic(at placement, links []api.LinkStatus) {
	for _, l := range links {
		if l.Network == nil || l.DownS == nil || l.UpS == nil {
			continue
		}
		if l.Link+1 >= len(at) || at[l.Link].Node == at[l.Link+1].Node {
			continue
		}
		p := pair(at[l.Link].Node, at[l.Link+1].Node)
		known, was := c.ways.known[p]
		if !was {
			known = Link{Link: placer.AssumedLink}
		}
		next := known
		if reached := 8 * float64(l.MessageBytes) * 2 / (*l.DownS + *l.UpS); reached > moreBits*known.BitsPerSecond {
			next.BitsPerSecond, next.Assumed, next.AtLeast, next.At = reached, false, true, c.now()
		}
		is, took := l.Network.RoundTripS, known.RoundTrip.Seconds()
		if is > 0 && (is > otherRoundTrip*took || took > otherRoundTrip*is) {
			next.RoundTrip = time.Duration(is * float64(time.Second))
		}
		if next != known {
			c.ways.known = maps.Clone(c.ways.known)
			c.ways.known[p] = next
		}
	}
}

// links are those between the nodes, as far as something is known of them.
func (c *Coordinator) links() placer.Links {
	all := placer.Links{}
	for p, l := range c.ways.known {
		all[p] = l.Link
	}
	return all
}

// forgetLinks drops those of nodes that are no members any more.
func (c *Coordinator) forgetLinks() {
	if slices.EqualFunc(c.ways.of, c.nodes(), func(a, b Node) bool { return a.Name == b.Name }) {
		return
	}
	c.ways.of, c.ways.known = c.nodes(), maps.Clone(c.ways.known)
	gone := func(p [2]string) bool {
		for _, name := range p {
			if _, member := c.node(name); !member {
				return true
			}
		}
		return false
	}
	maps.DeleteFunc(c.ways.known, func(p [2]string, _ Link) bool { return gone(p) })
	maps.DeleteFunc(c.ways.failed, func(p [2]string, _ time.Time) bool { return gone(p) })
}
