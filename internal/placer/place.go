package placer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
)

// Seat is where a stage runs.
type Seat struct {
	Group  int // of pipelines
	Stage  int
	Node   string
	Device int    // of those that the job has on the node, from 0
	Cores  []int  // that the device is pinned to
	GPU    string // that the device is on
}

// Placement is where all stages run, and why there.
type Placement struct {
	Seats   []Seat   // those of the first group, in the order of stages, then those of the next
	Nodes   []string // that have stages, in the order of their first ones
	Seconds float64  // that a batch is predicted to take; 0: nothing is known of times
	Reason  string   // for people
}

// NoRoomError says of each node why a job is not on it.
type NoRoomError struct {
	Lacks []string // "a: 2 of 4 cores are free, a device needs 3"
}

func (e *NoRoomError) Error() string {
	if len(e.Lacks) == 0 {
		return "there is no node"
	}
	return strings.Join(e.Lacks, "; ")
}

// worthANode is how much faster, as a part of the time, a placement on more nodes must be for a job that asks for few: the prediction errs by as
// much, and each node is one more that can be lost.
const worthANode = 0.1

// chosen is a way to put devices on nodes.
type chosen struct {
	of      []int // the node of each device
	nodes   int   // how many it takes
	seconds float64
	order   int // found as the n-th: of equals the first
}

// Place puts a job's stages on nodes. All of them go to one node where one has room for them, unless several are predicted to be faster by a tenth;
// a job that is to be spread takes as many nodes as it can. Where it takes several, the fastest way by prediction is taken of those that were looked
// at: devices that follow each other lie on one node, in any order of nodes, and what crosses nodes goes over few and fast links. Where no such way
// has room, one that does is looked for among all, which finds it in clusters of the usual size.
// Of equals the one whose nodes have fewer free cores, then less names, is taken. Where there is no room the error is a *NoRoomError.
//
// Each group of pipelines is placed so, on nodes that no other group has.
func Place(j Job, nodes []Node, links Links) (Placement, error) {
	p, lacks := place(j, nodes, links)
	if lacks != nil {
		return Placement{}, lacks()
	}
	return p, nil
}

// place is Place that says only when it is asked why there is no room; lacks is nil where there is.
func place(j Job, nodes []Node, links Links) (p Placement, lacks func() error) {
	if j.Groups <= 1 && j.Whole == "" && !j.mayHold(nodes) {
		return p, func() error { return newFinder(&j, nodes, links).noRoom() }
	}
	f := newFinder(&j, nodes, links)
	if j.Groups > 1 {
		p, err := f.placeGroups()
		return p, lazily(err)
	}
	if j.Whole != "" {
		p, err := f.whole()
		return p, lazily(err)
	}
	found := f.ways()
	if len(found) == 0 {
		return p, func() error { return f.noRoom() }
	}
	return f.placement(found[0]), nil
}

func lazily(err error) func() error {
	if err == nil {
		return nil
	}
	return func() error { return err }
}

// mayHold reports whether some node has as much free of everything as the least that a unit takes. Where all nodes are busy, nothing else has to be looked at.
func (j *Job) mayHold(nodes []Node) bool {
	units := j.units()
	if len(units) == 0 {
		return false
	}
	least := room{units[0].cores, units[0].gpus, units[0].bytes}
	for _, u := range units[1:] {
		least = room{min(least.cores, u.cores), min(least.gpus, u.gpus), min(least.bytes, u.bytes)}
	}
	for i := range nodes {
		if n := &nodes[i]; len(n.Cores) >= least.cores && len(n.GPUs) >= least.gpus && n.bytes() >= least.bytes {
			return true
		}
	}
	return false
}

// newFinder looks at nodes as a job sees them.
func newFinder(j *Job, nodes []Node, links Links) *finder {
	f := &finder{job: j, units: j.units(), links: links, nodes: make([]Node, 0, len(nodes))}
	for _, n := range nodes {
		switch n = j.view(n); {
		case j.Only != "" && n.Name != j.Only || j.Whole != "" && n.Name != j.Whole:
		case n.Excluded != "":
			f.excluded = append(f.excluded, n)
		default:
			f.nodes = append(f.nodes, n)
		}
	}
	return f
}

// preferred are nodes in the order in which jobs take them: the fastest first, of those the ones with the fewest cores free.
func preferred(nodes []Node) []Node {
	slices.SortStableFunc(nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(b.speed(), a.speed()), cmp.Compare(len(a.Cores), len(b.Cores)), cmp.Compare(a.Name, b.Name))
	})
	return nodes
}

// placement is what a way means.
func (f *finder) placement(c chosen) Placement {
	p := f.job.seat(f.nodes, c.of)
	p.Seconds = c.seconds
	p.Reason = f.why(c, p)
	return p
}

// view is a node without the GPUs that the job cannot use, and with what it lacks of that the job reads.
func (j *Job) view(n Node) Node {
	n.Excluded = cmp.Or(n.Excluded, j.Lacking[n.Name])
	if unfit := j.Unfit[n.Name]; len(unfit) > 0 {
		n.GPUs = slices.DeleteFunc(slices.Clone(n.GPUs), func(uuid string) bool { return slices.Contains(unfit, uuid) })
		n.All.GPUs -= len(unfit)
		n.GPUs = n.GPUs[:min(len(n.GPUs), max(n.All.GPUs, 0))] // those without a name come last
	}
	return n
}

// whole puts everything on one node, of which nobody else has anything.
func (f *finder) whole() (Placement, error) {
	j := *f.job
	j.Threads = 0
	for _, n := range f.nodes {
		if len(n.Cores) < n.All.Cores || n.Bytes < n.All.Bytes || len(n.GPUs) < min(j.GPUs, j.rows()) {
			continue
		}
		p := j.seat([]Node{n}, make([]int, j.rows()))
		for s := range p.Seats {
			p.Seats[s].Cores = n.Cores
		}
		p.Reason = fmt.Sprintf("all stages on %s, alone, whose %s they share", n.Name, words.Count(n.All.Cores, "core"))
		return p, nil
	}
	return Placement{}, f.noRoom()
}

// Fits reports whether a job has room on nodes now. It predicts no times, and so is cheap.
func Fits(j Job, nodes []Node) bool {
	if j.nextFits(nodes) {
		return true
	}
	j.Plan = nil
	_, lacks := place(j, nodes, nil)
	return lacks == nil
}

// nextFits reports whether there is room even if each unit goes where the last one is, or to a later node. Where nothing is busy that is nearly always so, and
// no order of nodes has to be looked for.
func (j *Job) nextFits(nodes []Node) bool {
	if j.Groups > 1 || j.Whole != "" {
		return false
	}
	units := j.units()
	for i := 0; i < len(nodes) && len(units) > 0; i++ {
		n := j.view(nodes[i])
		if n.Excluded != "" || j.Only != "" && n.Name != j.Only {
			continue
		}
		left := n.room()
		for len(units) > 0 && left.take(&units[0]) {
			units = units[1:]
		}
	}
	return len(units) == 0 && j.rows() > 0
}

// Take is nodes without what a placement takes of them. Those that are given stay as they are.
func (j *Job) Take(nodes []Node, p Placement) []Node {
	left := slices.Clone(nodes)
	for i := range left {
		n := &left[i]
		for _, s := range p.Seats {
			if s.Node == n.Name {
				j.sit(n, s)
			}
		}
	}
	return left
}

// sit takes what a stage has of its node. What that had free stays as it is.
func (j *Job) sit(n *Node, s Seat) {
	n.take(s.Cores, s.GPU)
	if j.Whole != "" {
		n.Bytes = 0
	} else if j.Bytes != nil {
		n.Bytes -= j.Bytes[s.Stage]
	}
}

// take takes cores and a GPU, where they are free.
func (n *Node) take(cores []int, gpu string) {
	if slices.ContainsFunc(n.Cores, func(core int) bool { return slices.Contains(cores, core) }) {
		n.Cores = slices.DeleteFunc(slices.Clone(n.Cores), func(core int) bool { return slices.Contains(cores, core) })
	}
	if slices.Contains(n.GPUs, gpu) {
		n.GPUs = slices.DeleteFunc(slices.Clone(n.GPUs), func(uuid string) bool { return uuid == gpu })
	}
}

// seat gives each device cores and a GPU of its node, in the order of devices.
func (j *Job) seat(nodes []Node, of []int) (p Placement) {
	type used struct{ devices, gpus int }
	taken, rows := map[int]used{}, make([]Seat, len(of))
	for row, i := range of {
		n, u := nodes[i], taken[i]
		at := Seat{Node: n.Name, Device: u.devices}
		from := u.devices * j.Threads
		at.Cores = n.Cores[from : from+j.Threads : from+j.Threads]
		if j.GPUs > 0 {
			if row == 0 || j.gpuOf(row) != j.gpuOf(row-1) {
				u.gpus++
			}
			at.GPU = n.GPUs[u.gpus-1]
		}
		u.devices++
		taken[i], rows[row] = u, at
	}
	for s, device := range j.Devices {
		at := rows[device]
		at.Stage = s
		p.Seats = append(p.Seats, at)
		if !slices.Contains(p.Nodes, at.Node) {
			p.Nodes = append(p.Nodes, at.Node)
		}
	}
	return p
}

// why says for people which stages are where, and why not all on one node.
func (f *finder) why(c chosen, p Placement) string {
	if len(p.Nodes) == 1 {
		return "all stages on " + p.Nodes[0]
	}
	text := stagesOn(p) + ": "
	switch {
	case f.job.Spread:
		text += "it is to be spread"
	case slices.ContainsFunc(f.found, func(other chosen) bool { return other.nodes < c.nodes }):
		text += "fewer nodes are predicted to be slower"
	default:
		text += "no node has " + f.job.Need() + " free"
	}
	if a, b, link, crosses := f.slowest(c.of); crosses {
		text += fmt.Sprintf("; the link %s-%s has %v", a, b, link)
	}
	return text
}

// stagesOn says which stages are on which node: "stages 0-1 on a, 2 on b".
func stagesOn(p Placement) string {
	var runs []string
	for from := 0; from < len(p.Seats); {
		to := from
		for to+1 < len(p.Seats) && p.Seats[to+1].Node == p.Seats[from].Node {
			to++
		}
		run := strconv.Itoa(from)
		if to > from {
			run = fmt.Sprintf("%d-%d", from, to)
		}
		runs = append(runs, run+" on "+p.Seats[from].Node)
		from = to + 1
	}
	if len(runs) == 1 || strings.Contains(runs[0], "-") {
		return "stages " + strings.Join(runs, ", ")
	}
	return "stage " + strings.Join(runs, ", ")
}

// slowest is the slowest link that a way crosses.
func (f *finder) slowest(of []int) (a, b string, slowest Link, crosses bool) {
	for s := range len(f.job.Devices) - 1 {
		from, to := f.nodes[of[f.job.Devices[s]]].Name, f.nodes[of[f.job.Devices[s+1]]].Name
		if from == to {
			continue
		}
		if link := f.links.Between(from, to); !crosses || link.BitsPerSecond < slowest.BitsPerSecond {
			a, b, slowest, crosses = from, to, link, true
		}
	}
	return a, b, slowest, crosses
}
