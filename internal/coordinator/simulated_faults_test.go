package coordinator

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// drill is a cluster, its jobs, and what goes wrong with them. The same schedule gives the same run.
type drill struct {
	nodes, size, jobs, stages, replicas int // size: cores of a node
	rounds, every                       uint64
	learn                               time.Duration // until every second node hears of a new leader
	strikes                             []strike
	fates                               map[message]fate
	random                              *rand.Rand // draws the fates of messages that have none; nil: nothing happens to those
	risk                                int        // of so many in 1,000
}

// message is the nth question of a method to a node, or answer of it.
type message struct {
	method, node string
	n            int
}

// fate is what happens to a message.
type fate struct {
	kind fateKind
	by   time.Duration
}

type fateKind uint8

const (
	passed     fateKind = iota
	lost                // nobody hears the question
	unanswered          // nobody hears the answer
	twice               // the question arrives again, later
	late                // who asked has given up when the question arrives
	slow                // the question takes a while
	slowAnswer          // the answer does
	fateKinds
)

var fateNames = [...]string{"passed", "lost", "unanswered", "twice", "late", "slow", "slow-answer"}

// strike is something that happens to a node, or to a job, at a time.
type strike struct {
	at   time.Duration
	what string
	node int
	last time.Duration // of what passes
}

// strikes are what can happen. What is undone after a time returns how.
var strikes = map[string]func(w *world, n *simNode) (undo func()){
	"kill": func(_ *world, n *simNode) func() {
		for _, t := range n.living() {
			t.exit(-1, "signal: killed")
		}
		return nil
	},
	"hang": func(_ *world, n *simNode) func() {
		for _, t := range n.living() {
			t.hangs = true
		}
		return nil
	},
	"crash":   func(w *world, n *simNode) func() { w.crash(n, true); return func() { w.boot(n) } },
	"restart": func(w *world, n *simNode) func() { w.crash(n, false); return func() { w.boot(n) } },
	"gone": func(w *world, n *simNode) func() {
		if len(w.nodes) == 3 && !slices.ContainsFunc(w.nodes, func(n *simNode) bool { return n.gone }) {
			n.gone = true
			w.crash(n, true)
		}
		return nil
	},
	"cut": func(w *world, n *simNode) func() {
		n.apart, n.away = true, w.at
		return func() { w.heal(n) }
	},
	"drain": func(_ *world, n *simNode) func() {
		n.drains = true
		return func() { n.drains = false }
	},
	"busy": func(_ *world, n *simNode) func() {
		n.busy = true
		return func() { n.busy = false }
	},
	"lead": func(w *world, n *simNode) func() {
		if w.quorum(n) {
			w.elect(n)
		}
		return nil
	},
	"damage": func(w *world, n *simNode) func() { w.damage(n); return nil },
	"cancel": func(w *world, _ *simNode) func() {
		_, _ = w.apply(&cluster.RequestCancel{Job: "1", Reason: "cancelling"})
		w.check.cancelled = true
		return nil
	},
	"resume": func(w *world, _ *simNode) func() {
		if j, err := w.state.Job("1"); err == nil && j.State.Ended() {
			_, _ = w.apply(&cluster.ResumeJob{Job: "1", Generation: j.Generation, Reason: "resumed"})
		}
		return nil
	},
	"stop": func(w *world, _ *simNode) func() {
		w.stopping = len(w.nodes) == 1 && w.leader != nil
		return nil
	},
}

// crash ends a daemon, and with it its host.
func (w *world) crash(n *simNode, host bool) {
	n.daemon, n.up = false, n.up && !host
	n.boots++
	n.away = w.at
	for _, t := range n.trainers {
		t.watched, t.forgot = false, t.forgot || t.ended
		if host {
			t.ended, t.forgot = true, true
		}
		t.wake()
	}
	if l := w.leader; l != nil && l.at == n {
		l.host.gone, w.leader, w.stopping = true, nil, false
	}
}

func (w *world) boot(n *simNode) {
	if n.gone {
		return
	}
	n.up, n.daemon = true, true
	w.heal(n)
}

// heal lets messages pass again: whoever hears the leader then knows of it, also those that could not while that one was cut off.
func (w *world) heal(n *simNode) {
	if n.gone {
		return
	}
	n.apart, n.away = false, 0
	for _, other := range w.nodes {
		if l := w.leader; l != nil && (other == n || l.at == n) && w.reach(other, l.at) {
			other.knows = w.term
		}
	}
}

// damage changes a byte of a shard of the newest round.
func (w *world) damage(n *simNode) {
	for _, j := range w.state.Jobs() {
		if m := j.LastCommitted(); m != nil {
			for _, s := range m.Shards {
				if k := n.shards[s.Digest]; k != nil && !k.damaged {
					k.damaged, w.check.damaged = true, true
					return
				}
			}
		}
	}
}

// fate says what happens to the next message of a method to a node. Within one process none is lost.
func (w *world) fate(method, node string, own bool) fate {
	m := message{method: method, node: node}
	w.said[m]++
	m.n = w.said[m]
	s := w.drill
	f, given := s.fates[m]
	if w.calm {
		return fate{}
	}
	if !given && s.random != nil && s.random.IntN(1000) < s.risk {
		f = fate{fateKind(1 + s.random.IntN(int(fateKinds)-1)), []time.Duration{100, 400, 1500, 3000}[s.random.IntN(4)] * time.Millisecond} //nolint:gosec // few
		given = !own || f.kind >= slow
		if given {
			s.fates[m] = f
		}
	}
	if !given || own && f.kind < slow {
		return fate{}
	}
	w.note("%s %s %d is %s %v", method, node, m.n, fateNames[f.kind], f.by)
	return f
}

// draw makes a schedule from a seed.
func draw(seed uint64) *drill {
	r := rand.New(rand.NewPCG(seed, 109))
	s := &drill{
		nodes: []int{1, 2, 3, 3}[r.IntN(4)], size: 1 + r.IntN(2), jobs: 1, stages: 1 + r.IntN(2), replicas: 1 + r.IntN(2),
		rounds: uint64(4 + r.IntN(9)), every: uint64(1 + r.IntN(4)), learn: []time.Duration{0, 300 * time.Millisecond, 2 * time.Second}[r.IntN(3)], //nolint:gosec // few
		fates: map[message]fate{}, random: r, risk: []int{0, 10, 40, 120}[r.IntN(4)],
	}
	if s.nodes == 1 {
		s.size = 2
	}
	if r.IntN(6) == 0 {
		s.jobs = 2
	}
	most := 5
	if r.IntN(4) == 0 { // a longer one, to which more happens
		s.rounds, most = 4*s.rounds, 9
	}
	kinds := slices.Sorted(maps.Keys(strikes))
	for range r.IntN(most) {
		s.strikes = append(s.strikes, strike{
			at: time.Duration(100+r.IntN(5000)) * time.Millisecond, what: kinds[r.IntN(len(kinds))], node: r.IntN(s.nodes),
			last: []time.Duration{300, 1000, 2500, 5000}[r.IntN(4)] * time.Millisecond,
		})
	}
	return s
}

// cores are those of a node.
func (s *drill) cores() []int { return []int{0, 1}[:s.size] }

// String writes a schedule as a scenario has it.
func (s *drill) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster nodes=%d cores=%d jobs=%d stages=%d replicas=%d rounds=%d commit-every=%d learn=%v\n", s.nodes, s.size, s.jobs, s.stages, s.replicas, s.rounds, s.every, s.learn)
	for _, one := range s.strikes {
		fmt.Fprintf(&b, "%s %c at=%v for=%v\n", one.what, 'a'+rune(one.node), one.at, one.last) //nolint:gosec // few
	}
	for _, m := range slices.SortedFunc(maps.Keys(s.fates), func(a, b message) int {
		return cmp.Or(cmp.Compare(a.method, b.method), cmp.Compare(a.node, b.node), a.n-b.n)
	}) {
		f := s.fates[m]
		fmt.Fprintf(&b, "message %s %s %d %s by=%v\n", m.method, m.node, m.n, fateNames[f.kind], f.by)
	}
	return b.String()
}

// readSchedule reads what String writes.
func readSchedule(text string) (*drill, error) {
	s := &drill{fates: map[message]fate{}}
	for line := range strings.Lines(text) {
		cmd, args, err := datadriven.ParseLine(line)
		if err != nil || cmd == "" {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		values := map[string]string{}
		for _, a := range args {
			values[a.Key] = strings.Join(a.Vals, "")
		}
		number := func(key string) (n int) { _, err = fmt.Sscan(values[key], &n); return n }
		duration := func(key string) time.Duration { d, _ := time.ParseDuration(values[key]); return d }
		switch cmd {
		case "cluster":
			s.nodes, s.size, s.jobs, s.stages, s.replicas = number("nodes"), number("cores"), number("jobs"), number("stages"), number("replicas")
			s.rounds, s.every, s.learn = uint64(number("rounds")), uint64(number("commit-every")), duration("learn") //nolint:gosec // few
		case "message":
			var n int
			_, err = fmt.Sscan(args[2].Key, &n)
			s.fates[message{args[0].Key, args[1].Key, n}] = fate{fateKind(slices.Index(fateNames[:], args[3].Key)), duration("by")} //nolint:gosec // few
		default:
			if strikes[cmd] == nil {
				err = fmt.Errorf("unknown strike %s", cmd)
			}
			s.strikes = append(s.strikes, strike{duration("at"), cmd, int(args[0].Key[0] - 'a'), duration("for")})
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
	return s, nil
}
