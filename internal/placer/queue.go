package placer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Patience is how long a job waits for others of higher priority. After that it goes before all that were submitted later, so that every job has its
// turn however many of higher priority come.
const Patience = 24 * time.Hour

// The bounds of a priority.
const (
	LeastPriority = -100
	MostPriority  = 100
)

// Waiting is a job that waits to be placed.
type Waiting struct {
	ID        string
	Priority  int
	Submitted time.Time
	Since     time.Time // it waits since then; zero: since it was submitted
	Want      Job
	// Takes is the longest time that it is expected to hold its place; 0: not known.
	Takes time.Duration
}

// Holder is a job that holds a place.
type Holder struct {
	ID   string
	Held map[string]Held // by node
	Ends time.Time       // when it is expected to give the place back; zero: not known
}

// Held is what a job holds of a node.
type Held struct {
	Cores []int
	GPUs  []string
	Bytes int64
}

// Verdict is what is decided about a job that waits.
type Verdict struct {
	Index int // of the job among those that wait
	Start bool
	// Want is what it starts with, or waits for: the job's own, or a whole node, where its own is more than all nodes have.
	Want   Job
	Placed Placement // where it starts
	// Never says that no node will have what it needs unless somebody changes something. It holds nobody up.
	Never bool
	// Behind is the job that it waits for to start; "": for what it needs to be free.
	Behind string
	// Since is when it began to wait, and Before when it is expected to start at the latest; zero: not known.
	Since, Before time.Time
	// Overtakes is the first job that was before it and waits on; "": it starts in its turn.
	Overtakes string
	// Lacks says what is free of what it needs, by node.
	Lacks string
}

// reservation is a place that a job which waits will have.
type reservation struct {
	id     string
	at     time.Time
	until  time.Time // zero: not known
	want   Job
	placed Placement
}

// line is the state of one pass over those that wait.
type line struct {
	now      time.Time
	nodes    []Node         // with what is free now
	idle     []Node         // with everything that they have free
	at       map[string]int // of each of them in all lists of nodes of the pass, by name
	holders  []Holder
	reserved []reservation
	moments  []moment // from now on; nil: they are to be made
	first    string   // that waits and holds others up
	blind    bool     // nobody knows when one that waits can start, so nobody overtakes it
}

// Order says which of the jobs that wait, which are given in the order of submission, start now, in the order of their turns. Their turn is by priority, the highest
// first, then by submission, whatever the clocks of the nodes said that took them; a
// job that has waited for Patience goes before those that have not. A job starts when it has room and nobody before it waits. Where somebody does, it
// still starts if it delays none of them: each of them is given the first place and time at which it has room, by the ends that are known of those that hold
// something, and it ends before that or takes something else. Where no such time is known, nobody overtakes. Nobody loses a place again.
func Order(now time.Time, nodes []Node, holders []Holder, waiting []Waiting) []Verdict {
	turn := make([]int, len(waiting))
	for i := range turn {
		turn[i] = i
	}
	slices.SortStableFunc(turn, func(a, b int) int { return waiting[a].compare(&waiting[b], now) })
	l := newLine(now, nodes, holders)
	all := make([]Verdict, 0, len(waiting))
	for _, i := range turn {
		v := l.next(&waiting[i])
		v.Index = i
		all = append(all, v)
	}
	return all
}

// newLine begins a pass.
func newLine(now time.Time, nodes []Node, holders []Holder) *line {
	l := &line{now: now, nodes: nodes, idle: idle(nodes), at: make(map[string]int, len(nodes)), holders: slices.Clone(holders)}
	for i := range nodes {
		l.at[nodes[i].Name] = i
	}
	return l
}

// compare orders by turn. Of equals the first that is given comes first.
func (w *Waiting) compare(other *Waiting, now time.Time) int {
	a, b := now.Sub(w.since()) >= Patience, now.Sub(other.since()) >= Patience
	switch {
	case a && b:
		return w.since().Compare(other.since())
	case a:
		return -1
	case b:
		return 1
	}
	return cmp.Compare(other.Priority, w.Priority)
}

// since is when the job began to wait.
func (w *Waiting) since() time.Time {
	if w.Since.IsZero() {
		return w.Submitted
	}
	return w.Since
}

// next decides about the job whose turn it is.
func (l *line) next(w *Waiting) Verdict {
	want, ever := w.Want.fitted(l.idle)
	v := Verdict{Want: want, Never: !ever, Since: w.since(), Behind: l.first}
	if !l.blind {
		if p, lacks := place(want, l.unreserved(w.Takes), nil); lacks == nil {
			v.Start, v.Placed, v.Overtakes, v.Behind = true, p, l.first, ""
			l.begin(w, want, p)
			return v
		}
	}
	if _, lacks := place(want, l.nodes, nil); lacks != nil {
		v.Lacks = lacks().Error()
	}
	if !ever {
		v.Behind = ""
		return v
	}
	r, known := l.reserve(w, want)
	if known {
		l.keep(r)
		v.Before = r.at
	}
	l.blind = l.blind || !known
	if l.first == "" {
		l.first = w.ID
	}
	return v
}

// begin gives a job its place.
func (l *line) begin(w *Waiting, want Job, p Placement) {
	h := Holder{ID: w.ID, Held: p.held(&want, l.nodes)}
	l.nodes, l.moments = want.Take(l.nodes, p), nil
	if w.Takes > 0 {
		h.Ends = l.now.Add(w.Takes)
	}
	l.holders = append(l.holders, h)
}

// unreserved are the nodes now, without what is reserved from a time on at which a job that starts now and takes so long would still be there.
func (l *line) unreserved(takes time.Duration) []Node {
	if len(l.reserved) == 0 {
		return l.nodes
	}
	nodes := slices.Clone(l.nodes)
	for i := range l.reserved {
		if r := &l.reserved[i]; takes <= 0 || l.now.Add(takes).After(r.at) {
			l.take(nodes, r)
		}
	}
	return nodes
}

// take takes what is reserved from nodes, which become others.
func (l *line) take(nodes []Node, r *reservation) {
	for _, s := range r.placed.Seats {
		if i, known := l.at[s.Node]; known {
			r.want.sit(&nodes[i], s)
		}
	}
}

// ends is when a holder gives its place back; one that should have done so does it now.
func (h *Holder) ends(now time.Time) time.Time {
	if h.Ends.Before(now) {
		return now
	}
	return h.Ends
}

// give makes free what a job held.
func (n *Node) give(h Held) {
	n.Cores = slices.Concat(n.Cores, h.Cores)
	slices.Sort(n.Cores)
	n.GPUs = slices.Concat(n.GPUs, h.GPUs)
	n.Bytes += h.Bytes
}

// held is what a placement holds of each node.
func (p *Placement) held(j *Job, nodes []Node) map[string]Held {
	all := map[string]Held{}
	for _, s := range p.Seats {
		h := all[s.Node]
		for _, core := range s.Cores {
			if !slices.Contains(h.Cores, core) {
				h.Cores = append(h.Cores, core)
			}
		}
		if s.GPU != "" && !slices.Contains(h.GPUs, s.GPU) {
			h.GPUs = append(h.GPUs, s.GPU)
		}
		if j.Bytes != nil && j.Whole == "" {
			h.Bytes += j.Bytes[s.Stage]
		}
		if i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == s.Node }); j.Whole != "" && i >= 0 {
			h.Bytes = nodes[i].All.Bytes
		}
		all[s.Node] = h
	}
	return all
}

// Fitted is the job as it can have room on nodes of which nobody has anything: see fitted.
func (j Job) Fitted(nodes []Node) Job {
	j, _ = j.fitted(idle(nodes))
	return j
}

// idle are nodes with everything that they have free.
func idle(nodes []Node) []Node {
	all := make([]Node, len(nodes))
	for i := range nodes {
		all[i] = nodes[i].idle()
	}
	return all
}

// fitted is the job as it can have room once its turn has come: as it is, or on a whole node, the largest, whose cores its devices share, or whose memory is
// less than it is predicted to take, where all nodes together have no room for it. It reports whether there will be room at all.
func (j Job) fitted(idle []Node) (Job, bool) {
	if Fits(j, idle) {
		return j, true
	}
	with := slices.Clone(idle)
	for i := range with {
		with[i].Excluded = ""
	}
	ready := j
	ready.Lacking = nil
	if Fits(ready, with) || slices.ContainsFunc(with, func(n Node) bool { return n.Unknown }) {
		return j, false // until a node comes back, or has what the job reads
	}
	if j.Groups > 1 { // they would have to take as many nodes
		return j, false
	}
	idle = slices.Clone(idle)
	slices.SortStableFunc(idle, func(a, b Node) int {
		return cmp.Or(cmp.Compare(j.short(&a), j.short(&b)), cmp.Compare(b.All.Cores, a.All.Cores), cmp.Compare(b.All.Bytes, a.All.Bytes), cmp.Compare(a.Name, b.Name))
	})
	for _, n := range idle {
		whole := j
		whole.Whole = n.Name
		if Fits(whole, idle) {
			return whole, true
		}
	}
	return j, false
}

// short is 1 where a node has less memory than all stages take, else 0.
func (j *Job) short(n *Node) int {
	if n.All.Bytes > 0 && j.bytes() > n.All.Bytes {
		return 1
	}
	return 0
}

// Text says for people why a job waits in a cluster of several nodes.
func (v *Verdict) Text(w *Waiting) string {
	var said []string
	if v.Behind != "" {
		said = append(said, "behind job "+v.Behind)
	}
	if v.Lacks != "" {
		said = append(said, fmt.Sprintf("needs %s (%s)", w.Want.Need(), v.Lacks))
	}
	return strings.Join(said, "; ") + v.By() + "; waits since " + v.Since.UTC().Format(time.RFC3339)
}

// By says until when a job is expected to start; "" where nobody knows.
func (v *Verdict) By() string {
	if v.Before.IsZero() {
		return ""
	}
	return "; expected to start by " + v.Before.UTC().Format(time.RFC3339)
}
