package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// Times of the simulated cluster.
const (
	simTick     = 500 * time.Millisecond // between ticks where nothing is said
	simGather   = 20 * time.Millisecond  // in which what is said comes together
	simElection = time.Second
	simLease    = 500 * time.Millisecond // in which a leader that is cut off still takes itself for one
	simGossip   = 1400 * time.Millisecond
)

// world is a cluster: nodes with their workers and shards, the replicated state, and who leads.
type world struct {
	*simulation
	drill    *drill
	nodes    []*simNode
	state    *cluster.State
	changed  chan struct{}
	term     uint64
	leader   *leadership // nil: nobody leads
	said     map[message]int
	calm     bool // nothing goes wrong any more
	stopping bool // the leader was asked to stop in order
	notes    strings.Builder
	account  account
	check    *checker
}

// account says what is noted of a run.
type account uint8

const (
	silent account = iota
	brief          // commands and strikes, which change only with what is decided
	full           // with times, decisions and messages
)

// simNode is a host and its daemon.
type simNode struct {
	name         string
	up, daemon   bool
	gone         bool // it never comes back
	apart        bool // nobody reaches it
	away         time.Duration
	busy, drains bool
	knows        uint64 // the term of the leader that it serves
	boots        int
	pids         int
	trainers     []*trainer
	shards       map[shard.Digest]*keptShard
}

func (w *world) node(name string) *simNode {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// reach reports whether messages pass between two nodes.
func (w *world) reach(a, b *simNode) bool { return a == b || a.up && b.up && !a.apart && !b.apart }

// simNotes bounds the account of a run, in bytes.
const simNotes = 8 << 10

// note adds to the account of a run.
func (w *world) note(format string, args ...any) {
	if w.account == full && w.notes.Len() < simNotes {
		fmt.Fprintf(&w.notes, "%5.2fs  %s\n", w.at.Seconds(), fmt.Sprintf(format, args...))
	}
}

// mark adds to the account of a run what a scenario keeps.
func (w *world) mark(format string, args ...any) {
	if w.account == brief {
		fmt.Fprintf(&w.notes, format+"\n", args...)
	}
	w.note(format, args...)
}

// leadership is a coordinator in its term, and what it has of Raft.
type leadership struct {
	w       *world
	at      *simNode
	term    uint64
	host    *simulatedHost
	c       *Coordinator
	agents  []*simAgent // its own first
	state   *cluster.State
	runs    bool // it ticks
	over    bool
	due     bool // a tick is asked for
	ticked  time.Duration
	said    map[string]string // the last decision about each job
	changed chan struct{}
}

// elect has a node lead, once it can.
func (w *world) elect(at *simNode) {
	if old := w.leader; old != nil {
		w.leader = nil
		w.after(simLease, old.end)
	}
	w.term++
	l := &leadership{w: w, at: at, term: w.term, host: &simulatedHost{simulation: w.simulation}, said: map[string]string{}}
	l.agents = append(l.agents, &simAgent{l: l, to: at})
	for i, n := range w.nodes {
		if n != at {
			l.agents = append(l.agents, &simAgent{l: l, to: n})
		}
		if w.reach(at, n) {
			n.knows = max(n.knows, w.learns(i))
		}
	}
	at.knows = w.term
	w.leader = l
	w.note("%s leads in term %d", at.name, w.term)
	l.begin()
}

// learns has a node hear of a new leader, now or later.
func (w *world) learns(i int) uint64 {
	n, term, by := w.nodes[i], w.term, w.drill.learn
	if by == 0 || w.calm || i%2 == 0 {
		return term
	}
	w.after(by, func() {
		if w.term == term && !n.apart {
			n.knows = term
		}
	})
	return 0
}

// quorum reports whether a node reaches most of the others.
func (w *world) quorum(at *simNode) bool {
	n := 0
	for _, other := range w.nodes {
		if other.daemon && w.reach(at, other) {
			n++
		}
	}
	return at.daemon && 2*n > len(w.nodes)
}

// lead sees to it that somebody leads, where somebody can.
func (w *world) lead() {
	if l := w.leader; l != nil && w.quorum(l.at) {
		return
	}
	if l := w.leader; l != nil {
		w.leader = nil
		w.after(simLease, l.end)
	}
	for i := range w.nodes {
		if n := w.nodes[(i+int(w.term))%len(w.nodes)]; w.quorum(n) { //nolint:gosec // few
			w.elect(n)
			return
		}
	}
}

// begin begins a term.
func (l *leadership) begin() {
	if l.over || l.host.gone {
		return
	}
	l.state, l.changed = l.w.state, l.w.changed
	l.c = newOn(Config{
		Nodes: l.members, Raft: l, DriftHold: time.Second, Log: zap.NewNop(),
		Limits: func() Limits {
			return Limits{ResponseTimeout: 6 * time.Second, RetryLimit: 40, RetryFirst: 500 * time.Millisecond, RetryLongest: 2 * time.Second}
		},
	}, l.host)
	l.c.specs, l.c.calls = &l.w.drill.spec().read, make(chan func(), simCalls)
	l.host.spawn(func() {
		err := l.c.Adopt(l.c.background)
		if l.over {
			return
		}
		if err != nil {
			l.c.End()
			l.w.after(retryTerm, l.begin)
			return
		}
		l.runs = true
		l.wake()
	})
}

// simCalls is room for all that a coordinator is told before it ticks, also by nodes that it adopts for long: whoever waited for room would hold up the simulation, which has one thread.
const simCalls = 1 << 14

// retryTerm is the pause of package node before a term begins that could not.
const retryTerm = time.Second

// end ends a term: somebody else leads.
func (l *leadership) end() {
	if l.c != nil && !l.over {
		l.c.End()
	}
	l.runs, l.over = false, true
}

// wake has the coordinator tick soon.
func (l *leadership) wake() {
	if !l.due {
		l.due = true
		l.w.after(simGather, l.tick)
	}
}

// tick is the body of Coordinator.Run.
func (l *leadership) tick() {
	l.due = false
	if !l.runs || l.host.gone || l.w.check.violation != "" {
		return
	}
	for range len(l.c.calls) {
		if l.ticked == 0 {
			break // it ticks before it hears anything
		}
		(<-l.c.calls)()
	}
	l.ticked = l.w.at
	if len(l.c.calls) > 0 {
		defer l.wake()
	}
	stopping := l.w.stopping && l == l.w.leader
	idle := l.c.tick(l.State(), stopping)
	if l.w.account == full {
		l.tell()
	}
	l.c.answered = nil
	if idle && stopping {
		l.w.note("%s has stopped in order", l.at.name)
		l.end()
		l.w.stopping, l.w.leader = false, nil
		return
	}
	l.w.after(simTick, func() {
		if l.w.at-l.ticked >= simTick {
			l.wake()
		}
	})
}

// tell notes what was decided, where that is new.
func (l *leadership) tell() {
	for _, j := range l.State().Jobs() {
		o := l.c.jobs[j.ID]
		if o == nil || l.said[j.ID] == o.note || o.note == "" {
			continue
		}
		l.said[j.ID] = o.note
		l.w.note("%s: job %s, generation %d, round %d: %s", l.at.name, j.ID, j.Generation, j.CommittedRound(), o.note)
	}
}

// members are the nodes as the leader sees them.
func (l *leadership) members() []Node {
	all := make([]Node, len(l.agents))
	for i, a := range l.agents {
		n := Node{Name: a.to.name, Cores: l.w.drill.cores(), Agent: a, Draining: a.to.drains}
		if since := a.to.away; since > 0 && l.w.at-since > simGossip && a.to != l.at {
			n.Reach = Reach{Since: epoch.Add(since), Down: true, Why: "the members agree that it is gone"}
		}
		all[i] = n
	}
	return all
}

// State implements Raft: a leader that another has followed learns nothing new.
func (l *leadership) State() *cluster.State {
	if l.w.leader == l {
		l.state, l.changed = l.w.state, l.w.changed
	}
	return l.state
}

// Changed implements Raft.
func (l *leadership) Changed() (*cluster.State, <-chan struct{}) { return l.State(), l.changed }

// Failed implements Raft.
func (l *leadership) Failed() <-chan struct{} { return nil }

var errNotLeader = errors.New("this node does not lead")

// Apply implements Raft.
func (l *leadership) Apply(_ context.Context, c cluster.Command) (cluster.Result, error) {
	w := l.w
	f := w.fate("propose", "raft", false)
	again := func() { // never once another leader has begun: it has applied all that is in its log by then, and nothing of an earlier term comes after
		if next := w.leader; w.fenced(c) && (next == nil || next == l || next.c == nil) {
			_, _ = w.apply(copied(c))
		}
	}
	if f.kind == twice || f.kind == late { // worse than Raft's log does: whatever order commands of a term come in, those of another time change nothing
		w.after(f.by, again)
	}
	if f.kind == late {
		w.sleep(simLease)
		return cluster.Result{}, errNotLeader
	}
	if f.kind == slow {
		w.sleep(f.by)
	}
	w.sleep(2 * simLatency)
	switch {
	case w.leader != l || !w.quorum(l.at) || f.kind == lost:
		w.sleep(simLease)
		return cluster.Result{}, errNotLeader
	case f.kind == unanswered: // it is committed while another one takes over
		_, _ = w.apply(c)
		w.elect(w.nodes[int(w.term)%len(w.nodes)]) //nolint:gosec // few
		w.lead()
		w.sleep(simLease)
		return cluster.Result{}, errNotLeader
	}
	result, err := w.apply(c)
	if f.kind == slowAnswer {
		w.sleep(f.by)
	}
	return result, err
}

// fenced reports whether a command names the generation that it was decided in.
func (w *world) fenced(c cluster.Command) bool {
	switch c.(type) {
	case *cluster.SetState, *cluster.BeginGeneration, *cluster.BeginCommit, *cluster.AbortCommit, *cluster.CommitRound, *cluster.DiscardRound:
		return true
	}
	return false
}

// copied is a command as it comes out of the log: what the first one holds is the state's.
func copied(c cluster.Command) cluster.Command {
	text, err := json.Marshal(c)
	out := reflect.New(reflect.TypeOf(c).Elem()).Interface()
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		panic(err)
	}
	return out.(cluster.Command)
}

// apply applies a command that was committed.
func (w *world) apply(c cluster.Command) (cluster.Result, error) {
	before := w.state
	next, result, err := before.Apply(before.Index+1, c)
	w.mark("%s: %s", cluster.Kind(c), said(c, result, err))
	w.state = next
	w.changed = make(chan struct{})
	w.check.applied(before, next, c, err)
	if w.leader != nil {
		w.leader.wake()
	}
	return result, err
}

// said says of a command what matters.
func said(c cluster.Command, r cluster.Result, err error) string {
	switch c := c.(type) {
	case *cluster.BeginGeneration:
		return fmt.Sprintf("job %s generation %d from round %d on %v%s", c.Job, r.Generation, c.From, placementOf(&cluster.Job{Placement: c.Placement}).nodes(), errText(err))
	case *cluster.BeginCommit:
		return fmt.Sprintf("job %s generation %d round %d%s", c.Job, c.Generation, c.Round, errText(err))
	case *cluster.CommitRound:
		return fmt.Sprintf("job %s generation %d round %d%s", c.Job, c.Generation, c.Round, errText(err))
	}
	return fmt.Sprintf("job %s%s", r.Job, errText(err))
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return ", refused: " + err.Error()
}
