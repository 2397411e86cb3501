package placer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/schedule"
)

// node is one with so many cores, of which all are free.
func node(name string, cores int) Node {
	n := Node{Name: name, All: Capacity{Cores: cores}}
	for i := range cores {
		n.Cores = append(n.Cores, i)
	}
	return n
}

// pipeline is a job of so many stages, one a device, with a micro-batch of 10 ms each and messages of so many bytes.
func pipeline(t testing.TB, stages, threads int, bytes int64) Job {
	t.Helper()
	plan, _, err := schedule.Generate("1f1b", schedule.Request{Devices: stages, Chunks: 1, MicroBatches: 4})
	if err != nil {
		t.Fatal(err)
	}
	j := Job{Threads: threads, Plan: plan, Costs: schedule.Uniform(stages, 0.004, 0.006, 0), Pipelines: 1}
	for s := range stages {
		j.Devices = append(j.Devices, s)
		if s > 0 {
			j.Costs.MessageBytes = append(j.Costs.MessageBytes, bytes)
		}
	}
	return j
}

// on says where stages are: "a a b".
func on(p Placement) string {
	names := make([]string, 0, len(p.Seats))
	for _, s := range p.Seats {
		names = append(names, s.Node)
	}
	return strings.Join(names, " ")
}

// TestStagesGoWhereThereIsRoom: to one node, else to few over fast links, with neighbours on one.
func TestStagesGoWhereThereIsRoom(t *testing.T) {
	links := Links{{"a", "b"}: {BitsPerSecond: 100e6, RoundTrip: time.Millisecond}, {"a", "c"}: {BitsPerSecond: 940e6, RoundTrip: 100 * time.Microsecond}, {"b", "c"}: {BitsPerSecond: 500e6}}
	with := func(n Node, change func(*Node)) Node { change(&n); return n }
	for name, c := range map[string]struct {
		threads int
		spread  bool
		nodes   []Node
		want    string
		why     string
	}{
		"the smallest that has room":   {1, false, []Node{node("a", 8), node("b", 5), node("c", 4)}, "c c c c", "all stages on c"},
		"by name":                      {1, false, []Node{node("b", 4), node("a", 4)}, "a a a a", ""},
		"over the fast link":           {1, false, []Node{node("a", 2), node("b", 2), node("c", 2)}, "a a c c", "stages 0-1 on a, 2-3 on c: no node has 4 cores free; the link a-c has 940 Mbit/s, round trip 100µs, measured"},
		"as few nodes as there can be": {1, false, []Node{node("a", 1), node("b", 1), node("d", 3)}, "a d d d", "the link a-d has 1000 Mbit/s, round trip 200µs, assumed"},
		"spread":                       {1, true, []Node{node("a", 4), node("c", 4)}, "a a a c", "it is to be spread"},
		"excluded":                     {1, false, []Node{with(node("a", 4), func(n *Node) { n.Excluded = "it is being drained" }), node("b", 4)}, "b b b b", ""},
		"a node that is twice as fast": {1, false, []Node{node("a", 4), with(node("b", 4), func(n *Node) { n.Speed = 2 })}, "b b b b", ""},
		"no room":                      {3, false, []Node{node("a", 4), node("b", 4)}, "", "a: 4 of 4 cores free; b: 4 of 4 cores free"},
	} {
		p, err := Place(func() Job { j := pipeline(t, 4, c.threads, 1e5); j.Spread = c.spread; return j }(), c.nodes, links)
		if err != nil {
			p.Reason = err.Error()
		}
		if on(p) != c.want && (!c.spread || len(p.Nodes) != len(c.nodes)) || !strings.Contains(p.Reason, c.why) {
			t.Errorf("%s: %q, %q; want %q, %q", name, on(p), p.Reason, c.want, c.why)
		}
	}
}

// TestGPUsAreSharedByNeighbours on one node.
func TestGPUsAreSharedByNeighbours(t *testing.T) {
	a, b := node("a", 8), node("b", 8)
	a.GPUs, a.All.GPUs, b.GPUs, b.All.GPUs = []string{"A"}, 1, []string{"B"}, 1
	j := pipeline(t, 4, 1, 1000)
	j.GPUs = 2
	p, err := Place(j, []Node{a, b}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range p.Seats {
		got = append(got, fmt.Sprintf("%s%d %v%s", s.Node, s.Device, s.Cores, s.GPU))
	}
	if text := strings.Join(got, " "); text != "a0 [0]A a1 [1]A b0 [0]B b1 [1]B" {
		t.Errorf("placed %s: %s", text, p.Reason)
	}
	j.GPUs = 3
	if _, err := Place(j, []Node{a, b}, nil); err == nil || !strings.Contains(err.Error(), "a: 8 of 8 cores, 1 of 1 GPU free") {
		t.Errorf("3 GPUs of 2: %v", err)
	}
}

// worst is how much longer than the best way of all a placement may be predicted to take, as a part of that: what a job gives for fewer nodes
// (worthANode of the longer time), and what the search overlooks.
const worst = 0.25

// TestNoWayIsMuchBetter holds placements of random small cases against all ways there are: one is found where there is any, none overdraws a node,
// and none of those that are to take few nodes is much slower than the best.
func TestNoWayIsMuchBetter(t *testing.T) {
	slowest, feasible, same := 0.0, 0, 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		j, nodes, links := randomCase(t, r)
		best, found := exhaustive(&j, nodes, links)
		p, err := Place(j, nodes, links)
		if refused := (*NoRoomError)(nil); err != nil && !errors.As(err, &refused) {
			t.Fatal(err)
		}
		if found != (err == nil) {
			t.Fatalf("seed %d: there is a way: %v; found: %v", seed, found, err)
		}
		if err != nil {
			continue
		}
		checkRoom(t, &j, nodes, p)
		feasible++
		if over := p.Seconds/best - 1; over > 1e-9 {
			if j.Spread {
				continue // it has another aim
			}
			if slowest = max(slowest, over); over > worst {
				t.Errorf("seed %d: %q takes %v, the best way %v", seed, on(p), p.Seconds, best)
			}
		} else {
			same++
		}
		again := slices.Clone(nodes)
		slices.Reverse(again)
		if q, err := Place(j, again, links); err != nil || on(q) != on(p) {
			t.Errorf("seed %d: %q, and with nodes in another order %q: %v", seed, on(p), on(q), err)
		}
	}
	t.Logf("%d of 400 have room, %d of them are as fast as the best; the slowest is %.0f%% slower", feasible, same, 100*slowest)
	if feasible < 100 {
		t.Errorf("only %d cases have room", feasible)
	}
}

// randomCase is a job of 1 to 5 devices and 1 to 4 nodes that differ in everything.
func randomCase(t *testing.T, r *rand.Rand) (Job, []Node, Links) {
	j := pipeline(t, 1+r.IntN(5), r.IntN(3), int64(r.IntN(1e6)))
	j.Spread = r.IntN(4) == 0
	for s := range j.Devices {
		j.Bytes = append(j.Bytes, int64(1+r.IntN(4)))
		j.Costs.Forward[s] *= 0.5 + r.Float64()
	}
	if r.IntN(3) == 0 {
		j.GPUs = 1 + r.IntN(len(j.Devices))
	}
	var nodes []Node
	for i := range 1 + r.IntN(4) {
		n := node(string(rune('a'+i)), r.IntN(7))
		n.All.Bytes = int64(3 + r.IntN(10))
		n.Bytes = n.All.Bytes - int64(r.IntN(3))
		n.Speed = []float64{0, 0, 1, 1.5, 2.5}[r.IntN(5)]
		for g := range r.IntN(4) {
			n.GPUs = append(n.GPUs, fmt.Sprint(n.Name, g))
		}
		if r.IntN(8) == 0 {
			n.Excluded = "it is being drained"
		}
		nodes = append(nodes, n)
	}
	links := Links{}
	for i := range nodes {
		for k := range i {
			links[[2]string{nodes[k].Name, nodes[i].Name}] = Link{BitsPerSecond: 1e8 * float64(1+r.IntN(20)), RoundTrip: time.Duration(r.IntN(3)) * time.Millisecond}
		}
	}
	return j, nodes, links
}

// exhaustive tries all ways, and returns the time of the fastest.
func exhaustive(j *Job, nodes []Node, links Links) (best float64, found bool) {
	units, of := j.units(), make([]int, j.rows())
	var try func(i int)
	try = func(i int) {
		if i == len(units) {
			if seconds := j.seconds(nodes, of, links); !found || seconds < best {
				best, found = seconds, true
			}
			return
		}
		for n := range nodes {
			at := nodes[n]
			if at.Excluded != "" || len(at.Cores) < units[i].cores || len(at.GPUs) < units[i].gpus || at.Bytes < units[i].bytes {
				continue
			}
			nodes[n].Cores, nodes[n].GPUs, nodes[n].Bytes = at.Cores[units[i].cores:], at.GPUs[units[i].gpus:], at.Bytes-units[i].bytes
			for _, row := range units[i].rows {
				of[row] = n
			}
			try(i + 1)
			nodes[n] = at
		}
	}
	try(0)
	return best, found
}

// checkRoom finds what a placement takes that is not free, or takes twice.
func checkRoom(t *testing.T, j *Job, nodes []Node, p Placement) {
	t.Helper()
	left := j.Take(nodes, p)
	for i, n := range left {
		devices := map[int]bool{}
		gpus := map[string]bool{}
		for _, s := range p.Seats {
			if s.Node != n.Name {
				continue
			}
			devices[s.Device] = true
			if s.GPU != "" {
				gpus[s.GPU] = true
			}
			if n.Excluded != "" {
				t.Errorf("stage %d is on %+v", s.Stage, n)
			}
		}
		if n.Bytes < 0 || len(n.Cores) != len(nodes[i].Cores)-j.Threads*len(devices) || len(n.GPUs) != len(nodes[i].GPUs)-len(gpus) {
			t.Errorf("node %+v has %+v left after %+v", nodes[i], n, p.Seats)
		}
	}
}
