package placer

import (
	"cmp"
	"slices"
)

// How far a search goes.
const (
	beam      = 12     // ways that are followed from one device to the next, for each number of nodes
	mostSteps = 200000 // of the search among all ways, where none of the others has room
	mostWays  = 1000   // that it looks at
	simulated = 3      // ways that are simulated, for each number of nodes
)

// finder looks for ways to put the units of a job on nodes.
type finder struct {
	job   *Job
	units []unit
	nodes []Node // that may have some, the ones to be preferred first
	links Links
	found []chosen

	excluded []Node
}

// partial is a way to put the first units on nodes, of which those on one node follow each other.
type partial struct {
	before        *partial
	node          int
	cores, gpus   int   // that are left on node
	bytes         int64 // that are
	used          uint64
	nodes         int
	slowest, fill float64
}

// ways are those that it finds, the best first. Where one node has room for everything, and none is faster, there is no other.
func (f *finder) ways() []chosen {
	all := f.nodes
	f.nodes = preferred(f.holding())
	if len(f.units) > 0 && len(f.nodes) > 0 {
		if found := f.among(); len(found) > 0 {
			return found
		}
	}
	f.nodes = all // that it says of each what it lacks
	return nil
}

// holding are the nodes that have room for some unit: in a large cluster most have none.
func (f *finder) holding() (some []Node) {
	for _, n := range f.nodes {
		if slices.ContainsFunc(f.units, func(u unit) bool { r := n.room(); return r.take(&u) }) {
			some = append(some, n)
		}
	}
	return some
}

// among looks for ways among the nodes that are left.
func (f *finder) among() []chosen {
	if c, fits := f.onFastest(); fits && !f.job.Spread {
		return []chosen{c}
	}
	f.follow()
	if len(f.found) == 0 {
		f.searchAll()
	}
	if len(f.found) == 0 {
		return nil
	}
	f.predict()
	fastest := f.found[0].seconds
	for _, c := range f.found {
		fastest = min(fastest, c.seconds)
	}
	slices.SortFunc(f.found, func(a, b chosen) int {
		if f.job.Spread {
			return cmp.Or(cmp.Compare(b.nodes, a.nodes), cmp.Compare(a.seconds, b.seconds), cmp.Compare(a.order, b.order))
		}
		slowA, slowB := a.seconds*(1-worthANode) > fastest, b.seconds*(1-worthANode) > fastest
		if slowA != slowB {
			if slowB {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.nodes, b.nodes), cmp.Compare(a.seconds, b.seconds), cmp.Compare(a.order, b.order))
	})
	return f.found
}

// onFastest puts everything on one node that no other is faster than: what several could gain, links would take.
func (f *finder) onFastest() (c chosen, fits bool) {
	for n := range f.nodes {
		if f.nodes[n].speed() < f.nodes[0].speed() {
			break
		}
		if f.holdsAll(n) {
			c = chosen{of: slices.Repeat([]int{n}, f.job.rows()), nodes: 1}
			c.seconds = f.job.seconds(f.nodes, c.of, f.links)
			return c, true
		}
	}
	return c, false
}

// holdsAll reports whether a node has room for all units.
func (f *finder) holdsAll(n int) bool {
	var p *partial
	for i := range f.units {
		if p = f.extend(p, i, n); p == nil {
			return false
		}
	}
	return true
}

// maxNodes bounds the nodes of one search; used has a bit for each.
const maxNodes = 64

// follow finds ways whose neighbours are on one node, unit by unit, and keeps of each number of nodes the fastest few.
func (f *finder) follow() {
	nodes := f.nodes[:min(len(f.nodes), maxNodes)]
	all := []*partial{nil}
	for i := range f.units {
		byNodes := make([][]*partial, len(nodes)+1)
		for _, p := range all {
			for n := range nodes {
				if next := f.extend(p, i, n); next != nil {
					byNodes[next.nodes] = append(byNodes[next.nodes], next)
				}
			}
		}
		all = nil
		for _, some := range byNodes {
			all = append(all, f.best(some)...)
		}
	}
	for _, p := range all {
		at := make([]int, len(f.units))
		for i, one := len(f.units)-1, p; one != nil; i, one = i-1, one.before {
			at[i] = one.node
		}
		f.add(at)
	}
}

// extend puts unit i on a node after a way to put those before; nil where there is no room.
func (f *finder) extend(p *partial, i, n int) *partial {
	u, node := &f.units[i], &f.nodes[n]
	next := partial{before: p, node: n}
	switch {
	case p != nil && p.node == n:
		next.cores, next.gpus, next.bytes = p.cores, p.gpus, p.bytes
		next.used, next.nodes, next.slowest, next.fill = p.used, p.nodes, p.slowest, p.fill
	case p != nil && p.used&(1<<n) != 0:
		return nil
	default:
		next.cores, next.gpus, next.bytes = len(node.Cores), len(node.GPUs), node.bytes()
		next.used, next.nodes = 1<<n, 1
		if p != nil {
			next.used, next.nodes, next.slowest, next.fill = p.used|1<<n, p.nodes+1, p.slowest, p.fill
			arrives, occupies := f.links.Between(f.nodes[p.node].Name, node.Name).message(f.units[i-1].out)
			next.slowest, next.fill = max(next.slowest, occupies), next.fill+2*arrives
		}
	}
	next.cores, next.gpus, next.bytes = next.cores-u.cores, next.gpus-u.gpus, next.bytes-u.bytes
	if next.cores < 0 || next.gpus < 0 || next.bytes < 0 || !f.enough(&next, i+1) {
		return nil
	}
	next.slowest, next.fill = max(next.slowest, u.seconds/node.speed()), next.fill+u.fill/node.speed()
	return &next
}

// enough reports whether the units from i on can have room at all, each kind of resource and node by itself.
func (f *finder) enough(p *partial, i int) bool {
	left := len(f.units) - i
	if left == 0 {
		return true
	}
	u, room := &f.units[i], 0
	for n := range f.nodes {
		cores, gpus := len(f.nodes[n].Cores), len(f.nodes[n].GPUs)
		switch {
		case n == p.node:
			cores, gpus = p.cores, p.gpus
		case p.used&(1<<n) != 0:
			continue
		}
		if room += seatsIn(cores, f.job.Threads, seatsIn(gpus, u.gpus, left)); room >= left {
			return true
		}
	}
	return false
}

// seatsIn is how often need is in have, at most most.
func seatsIn(have, need, most int) int {
	if need == 0 {
		return most
	}
	return min(have/need, most)
}

// best are the fastest of ways of the same length and number of nodes. Of those that are on the same node, and have used the same, only the fastest
// few count, so that others, which may have room where these do not, are followed too.
func (f *finder) best(some []*partial) []*partial {
	slices.SortStableFunc(some, func(a, b *partial) int {
		return cmp.Or(cmp.Compare(f.job.batch(a.slowest, a.fill), f.job.batch(b.slowest, b.fill)), cmp.Compare(b.bytes, a.bytes))
	})
	type place struct {
		used uint64
		node int
	}
	kept, seen := some[:0:0], map[place]int{}
	for _, p := range some {
		at := place{p.used, p.node}
		if seen[at]++; seen[at] <= 2 && len(kept) < beam {
			kept = append(kept, p)
		}
	}
	return kept
}

// room is what is left of a node.
type room struct {
	cores, gpus int
	bytes       int64
}

// room is what is free of a node.
func (n *Node) room() room { return room{len(n.Cores), len(n.GPUs), n.bytes()} }

// take takes what a unit needs. It reports whether there was as much.
func (r *room) take(u *unit) bool {
	if r.cores < u.cores || r.gpus < u.gpus || r.bytes < u.bytes {
		return false
	}
	r.cores, r.gpus, r.bytes = r.cores-u.cores, r.gpus-u.gpus, r.bytes-u.bytes
	return true
}

// searchAll looks among all ways, those too whose neighbours lie apart, for some that have room: the units that need most first.
func (f *finder) searchAll() {
	order := make([]int, len(f.units))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &f.units[a], &f.units[b]
		return cmp.Or(cmp.Compare(y.bytes, x.bytes), cmp.Compare(y.cores, x.cores))
	})
	left, at, steps := make([]room, len(f.nodes)), make([]int, len(f.units)), 0
	for n := range f.nodes {
		left[n] = f.nodes[n].room()
	}
	var put func(i int)
	put = func(i int) {
		if i == len(order) {
			f.add(at)
			return
		}
		u := &f.units[order[i]]
		for n := range f.nodes {
			r := left[n]
			if !left[n].take(u) {
				continue
			}
			if steps++; steps > mostSteps || len(f.found) >= mostWays {
				return
			}
			at[order[i]] = n
			put(i + 1)
			left[n] = r
		}
	}
	put(0)
}

// add notes a way that has room, by the node of each unit.
func (f *finder) add(at []int) {
	c := chosen{of: make([]int, f.job.rows()), order: len(f.found)}
	for i, n := range at {
		for _, row := range f.units[i].rows {
			c.of[row] = n
		}
	}
	c.nodes = len(slices.Compact(slices.Sorted(slices.Values(at))))
	f.found = append(f.found, c)
}

// predict says how long a batch takes each way: of the best few of each number of nodes by simulation, where another could be faster.
func (f *finder) predict() {
	if f.job.Plan == nil {
		return
	}
	for i := range f.found {
		f.found[i].seconds = f.job.estimate(f.nodes, f.found[i].of, f.links)
	}
	slices.SortStableFunc(f.found, func(a, b chosen) int { return cmp.Or(cmp.Compare(a.nodes, b.nodes), cmp.Compare(a.seconds, b.seconds)) })
	kept, of := f.found[:0], map[int]int{}
	for _, c := range f.found {
		if of[c.nodes]++; of[c.nodes] <= simulated {
			kept = append(kept, c)
		}
	}
	f.found = kept
	for i := range f.found {
		f.found[i].seconds = f.job.seconds(f.nodes, f.found[i].of, f.links)
	}
}
