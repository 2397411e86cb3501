package placer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cores is a job of so many devices with a core each.
func cores(n int) Job {
	j := Job{Threads: 1}
	for i := range n {
		j.Devices = append(j.Devices, i)
	}
	return j
}

var start = time.Unix(1e9, 0)

func at(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }

// waits is a job that was submitted after so many minutes.
func waits(id string, want Job, priority, minute, takes int) Waiting {
	return Waiting{ID: id, Want: want, Priority: priority, Submitted: at(minute), Takes: time.Duration(takes) * time.Minute}
}

// TestTurns: who starts, and behind whom the others wait.
func TestTurns(t *testing.T) {
	busy := func(n Node, taken int) Node { n.Cores = n.Cores[taken:]; return n }
	held := func(ends int, cores ...int) Holder {
		h := Holder{ID: "0", Held: map[string]Held{"a": {Cores: cores}}}
		if ends > 0 {
			h.Ends = at(ends)
		}
		return h
	}
	for name, c := range map[string]struct {
		nodes   []Node
		holders []Holder
		waiting []Waiting
		want    string
	}{
		"first come, first served": {[]Node{node("a", 2)}, nil, []Waiting{waits("1", cores(2), 0, 0, 0), waits("2", cores(1), 0, 1, 0)}, "1 starts, 2 waits"},
		"by priority":              {[]Node{node("a", 2)}, nil, []Waiting{waits("1", cores(2), 0, 0, 0), waits("2", cores(1), 5, 1, 0)}, "1 waits, 2 starts"},
		"nobody overtakes where no end is known": {
			[]Node{busy(node("a", 3), 2)}, []Holder{held(0, 0, 1)}, []Waiting{waits("1", cores(2), 0, 0, 0), waits("2", cores(1), 0, 1, 1)}, "1 waits, 2 waits behind 1",
		},
		"one that ends before": {
			[]Node{busy(node("a", 3), 2)}, []Holder{held(9, 0, 1)}, []Waiting{waits("1", cores(3), 0, 0, 0), waits("2", cores(1), 0, 1, 8)}, "1 waits until 9, 2 starts before 1",
		},
		"one that would not": {
			[]Node{busy(node("a", 3), 2)}, []Holder{held(9, 0, 1)}, []Waiting{waits("1", cores(3), 0, 0, 0), waits("2", cores(1), 0, 1, 20)}, "1 waits until 9, 2 waits behind 1",
		},
		"one that takes something else": {
			[]Node{busy(node("a", 3), 2), busy(node("b", 3), 0)},
			[]Holder{held(9, 0, 1)},
			[]Waiting{waits("1", cores(5), 0, 0, 0), waits("2", cores(1), 0, 1, 0)},
			"1 waits until 9, 2 starts before 1",
		},
		"what will never be had holds nobody up": {
			[]Node{node("a", 3)}, nil, []Waiting{waits("1", func() Job { j := cores(1); j.GPUs = 1; return j }(), 0, 0, 0), waits("2", cores(1), 0, 1, 0)}, "1 never, 2 starts",
		},
		"more cores than all nodes have": {
			[]Node{node("a", 3), node("b", 2)}, nil, []Waiting{waits("1", cores(6), 0, 0, 0), waits("2", cores(2), 0, 1, 0)}, "1 starts on all of a, 2 starts",
		},
		"patience": {
			[]Node{node("a", 2)}, nil, []Waiting{waits("1", cores(2), -100, -25*60, 0), waits("2", cores(1), 100, -60, 0)}, "1 starts, 2 waits",
		},
	} {
		var got []string
		verdicts := Order(at(0), c.nodes, c.holders, c.waiting)
		slices.SortFunc(verdicts, func(a, b Verdict) int { return a.Index - b.Index })
		for i, v := range verdicts {
			text := c.waiting[i].ID
			switch {
			case v.Start:
				text += " starts"
			case v.Never:
				text += " never"
			default:
				text += " waits"
			}
			switch {
			case v.Want.Whole != "":
				text += " on all of " + v.Want.Whole
			case v.Overtakes != "":
				text += " before " + v.Overtakes
			case v.Behind != "":
				text += " behind " + v.Behind
			case !v.Before.IsZero():
				text += fmt.Sprintf(" until %.0f", v.Before.Sub(start).Minutes())
			}
			got = append(got, text)
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: %s; want %s", name, text, c.want)
		}
	}
}

// simulation is a cluster that starts what Order says.
type simulation struct {
	t       *testing.T
	seed    uint64
	now     time.Time
	nodes   []Node
	holders []Holder
	ends    []time.Time // of holders, in truth
	waiting []Waiting
	lasts   map[string]time.Duration
	promise map[string]time.Time // to the first of those that wait
	started map[string]time.Time
}

// pass starts what may start, and checks that nothing is given twice and no promise is broken.
func (s *simulation) pass() {
	all := Order(s.now, s.nodes, s.holders, s.waiting)
	var left []Waiting
	head := ""
	for _, v := range all { // who waits on, and was first
		w := s.waiting[v.Index]
		if !v.Start {
			left = append(left, w)
		}
		switch {
		case v.Start:
			if head != "" && v.Overtakes == "" {
				s.t.Errorf("seed %d: job %s starts before %s, and does not say so", s.seed, w.ID, head)
			}
			s.begin(w, v)
		case !v.Never && head == "":
			head = w.ID
			if before, was := s.promise[w.ID]; was && !before.IsZero() && (v.Before.IsZero() || v.Before.After(before)) {
				s.t.Errorf("seed %d: at %v job %s was to start by %v, now by %v", s.seed, s.now.Sub(start), w.ID, before.Sub(start), v.Before.Sub(start))
			}
			s.promise = map[string]time.Time{w.ID: v.Before}
		}
	}
	if head == "" {
		s.promise = nil
	}
	s.waiting = left
}

// begin takes a place, and fails where somebody has some of it.
func (s *simulation) begin(w Waiting, v Verdict) {
	for i := range s.nodes {
		h := v.Placed.held(&v.Want, s.nodes)[s.nodes[i].Name]
		n := &s.nodes[i]
		for _, core := range h.Cores {
			if !slices.Contains(n.Cores, core) {
				s.t.Fatalf("seed %d: core %d of %s is given twice", s.seed, core, n.Name)
			}
		}
		for _, uuid := range h.GPUs {
			if !slices.Contains(n.GPUs, uuid) {
				s.t.Fatalf("seed %d: GPU %s is given twice", s.seed, uuid)
			}
		}
		if h.Bytes > n.Bytes {
			s.t.Fatalf("seed %d: %d bytes of %d", s.seed, h.Bytes, n.Bytes)
		}
	}
	h := Holder{ID: w.ID, Held: v.Placed.held(&v.Want, s.nodes)}
	s.nodes = v.Want.Take(s.nodes, v.Placed)
	if w.Takes > 0 {
		h.Ends = s.now.Add(w.Takes)
	}
	s.holders, s.ends = append(s.holders, h), append(s.ends, s.now.Add(s.lasts[w.ID]))
	s.started[w.ID] = s.now
}

// end gives back what has ended by now. It reports whether anything has.
func (s *simulation) end() (some bool) {
	for i, v := range slices.Backward(s.holders) {
		if s.ends[i].After(s.now) {
			continue
		}
		for k := range s.nodes {
			s.nodes[k].give(v.Held[s.nodes[k].Name])
		}
		s.holders, s.ends, some = slices.Delete(s.holders, i, i+1), slices.Delete(s.ends, i, i+1), true
	}
	return some
}

// newSimulation has 1 to 4 nodes.
func newSimulation(t *testing.T, r *rand.Rand, seed uint64) *simulation {
	s := &simulation{t: t, seed: seed, now: start, lasts: map[string]time.Duration{}, started: map[string]time.Time{}}
	for i := range 1 + r.IntN(4) {
		n := node(string(rune('a'+i)), 1+r.IntN(6))
		n.All.Bytes = int64(5 + r.IntN(20))
		n.Bytes = n.All.Bytes
		for g := range r.IntN(3) {
			n.GPUs = append(n.GPUs, fmt.Sprint(n.Name, g))
		}
		n.All.GPUs = len(n.GPUs)
		s.nodes = append(s.nodes, n)
	}
	return s
}

// TestQueuesServeEverybody: in random workloads nothing is given twice, everybody who can ever start does, in turn or without a delay of who is first.
func TestQueuesServeEverybody(t *testing.T) {
	overtaken := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := newSimulation(t, r, seed)
		idle := slices.Clone(s.nodes)
		arrivals := map[int][]Waiting{}
		total := 4 + r.IntN(12)
		for i := range total {
			want := cores(1 + r.IntN(5))
			if r.IntN(4) == 0 {
				want.GPUs = 1 + r.IntN(2)
			}
			for range want.Devices {
				want.Bytes = append(want.Bytes, int64(r.IntN(4)))
			}
			minute, lasts := r.IntN(60), 1+r.IntN(30)
			w := waits(strconv.Itoa(i), want, []int{0, 0, 0, 5, -5}[r.IntN(5)], minute, 0)
			s.lasts[w.ID] = time.Duration(lasts) * time.Minute
			if r.IntN(5) > 0 {
				w.Takes = s.lasts[w.ID] + time.Duration(r.IntN(10))*time.Minute
			}
			arrivals[minute] = append(arrivals[minute], w)
		}
		stuck := 0
		for minute := range 60 + 31*total {
			s.now = at(minute)
			if !s.end() && len(arrivals[minute]) == 0 {
				continue
			}
			if len(arrivals[minute]) > 0 { // whoever has come may go before who was first
				s.promise = nil
			}
			s.waiting = append(s.waiting, arrivals[minute]...)
			s.pass()
		}
		for _, w := range s.waiting {
			if _, ever := w.Want.fitted(idle); ever {
				t.Errorf("seed %d: job %s has not started: %+v", seed, w.ID, w)
			}
			stuck++
		}
		if len(s.started)+stuck != total {
			t.Errorf("seed %d: %d started and %d wait of %d", seed, len(s.started), stuck, total)
		}
		overtaken += s.overtook()
	}
	t.Logf("%d jobs started before others that were submitted earlier", overtaken)
	if overtaken < 100 {
		t.Error("the workloads try too little")
	}
}

// overtook counts those that started before one with a lesser number did.
func (s *simulation) overtook() (n int) {
	for id, began := range s.started {
		for other, later := range s.started {
			if len(other) == len(id) && other < id && later.After(began) {
				n++
				break
			}
		}
	}
	return n
}

// TestNobodyStarves: a job of the least priority starts once it has waited for Patience and those before it have ended, though others never cease to come.
func TestNobodyStarves(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	s := newSimulation(t, r, 0)
	s.nodes = []Node{node("a", 2)}
	s.waiting = []Waiting{waits("low", cores(2), LeastPriority, 0, 0)}
	s.lasts["low"] = time.Hour
	for minute := 0; minute < 30*60; minute += 20 {
		s.now = at(minute)
		s.end()
		id := fmt.Sprint("high", minute)
		s.lasts[id] = time.Hour
		s.waiting = append(s.waiting, waits(id, cores(1), MostPriority, minute, 60))
		s.promise = nil
		s.pass()
	}
	began, ok := s.started["low"]
	if waited := began.Sub(start); !ok || waited < Patience || waited > Patience+time.Hour {
		t.Errorf("it started: %v, after %v", ok, waited)
	}
}

// TestAClockThatIsWrongChangesNoTurn: jobs whose submission was noted by clocks that had jumped start in the order in which they came.
func TestAClockThatIsWrongChangesNoTurn(t *testing.T) {
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	nodes := []Node{{Name: "a", Cores: []int{0}, All: Capacity{Cores: 1}}}
	one := Job{Devices: []int{0}, Threads: 1}
	for name, submitted := range map[string][2]time.Time{
		"forwards":  {now.AddDate(4, 0, 0), now},
		"backwards": {now, now.AddDate(0, 0, -4)},
	} {
		waiting := []Waiting{
			{ID: "1", Want: one, Submitted: submitted[0], Since: now.Add(-time.Hour)},
			{ID: "2", Want: one, Submitted: submitted[1], Since: now.Add(-time.Minute)},
		}
		if v := Order(now, nodes, nil, waiting); v[0].Index != 0 || !v[0].Start || v[1].Start {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
