package placer

import (
	"fmt"
	"slices"
	"strings"
)

// mostTried bounds how many ways to place a group are tried until those after it have room too.
const mostTried = 64

// placeGroups places one group of pipelines after the other, on nodes that those before have nothing on. Where a later one then has no room, the next best
// way to place the one before is tried.
func (f *finder) placeGroups() (Placement, error) {
	one, tries := *f.job, mostTried
	one.Groups, one.Whole = 1, ""
	var lacks error
	var place func(nodes []Node, before []Placement) []Placement
	place = func(nodes []Node, before []Placement) []Placement {
		if len(before) == f.job.Groups {
			return before
		}
		next := &finder{job: &one, units: f.units, links: f.links, nodes: nodes, excluded: f.excluded}
		found := next.ways()
		if len(found) == 0 && lacks == nil {
			lacks = f.shortOf(before, next)
		}
		for _, c := range found {
			if tries--; tries < 0 {
				return nil
			}
			p := next.placement(c)
			others := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return slices.Contains(p.Nodes, n.Name) })
			if all := place(others, append(slices.Clip(before), p)); all != nil {
				return all
			}
		}
		return nil
	}
	all := place(f.nodes, nil)
	if all == nil {
		return Placement{}, lacks
	}
	return f.together(all), nil
}

// together is a placement of all groups.
func (f *finder) together(groups []Placement) (all Placement) {
	var why []string
	for g, p := range groups {
		for _, s := range p.Seats {
			s.Group = g
			all.Seats = append(all.Seats, s)
		}
		all.Nodes = append(all.Nodes, p.Nodes...)
		all.Seconds = max(all.Seconds, p.Seconds)
		why = append(why, fmt.Sprintf("group %d: %s", g, p.Reason))
	}
	seconds, a, b := f.exchange(groups)
	if all.Seconds > 0 && seconds > all.Seconds {
		why = append(why, fmt.Sprintf("what pipelines send each other takes longer than a batch, over the link %s-%s with %v", a, b, f.links.Between(a, b)))
		all.Seconds = seconds
	}
	all.Reason = strings.Join(why, "; ")
	return all
}

// exchange is how long the messages between groups take in the time of a batch, and between which two nodes they take the longest. Each way of a link
// carries those of the pipelines at its end, for the stages that both ends have.
func (f *finder) exchange(groups []Placement) (seconds float64, from, to string) {
	if f.job.Messages == nil {
		return 0, "", ""
	}
	bytes := map[[2]string]int64{}
	for g, p := range groups {
		for _, q := range groups[g+1:] {
			for s, at := range p.Seats {
				bytes[[2]string{at.Node, q.Seats[s].Node}] += int64(max(1, f.job.Pipelines)) * f.job.Messages[s]
			}
		}
	}
	for g, p := range groups { // in order, so that of equals the first is named
		for _, q := range groups[g+1:] {
			for s, at := range p.Seats {
				a, b := at.Node, q.Seats[s].Node
				if _, takes := f.links.Between(a, b).message(bytes[[2]string{a, b}]); takes > seconds {
					seconds, from, to = takes, a, b
				}
			}
		}
	}
	return seconds, from, to
}

// shortOf says of each node what it lacks where a group has no room beside those before it.
func (f *finder) shortOf(before []Placement, next *finder) error {
	lacks := next.noRoom()
	for g, p := range before {
		for _, name := range p.Nodes {
			lacks.Lacks = append(lacks.Lacks, fmt.Sprintf("%s: taken by group %d of %d", name, g, f.job.Groups))
		}
	}
	if len(lacks.Lacks) < f.job.Groups {
		lacks.Lacks = append(lacks.Lacks, fmt.Sprintf("%d nodes for %d groups", len(lacks.Lacks), f.job.Groups))
	}
	return lacks
}
