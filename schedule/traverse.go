package schedule

// traversal runs a plan in an order its dependencies allow, without a clock: a device runs its next op as soon as the
// message the op consumes has been sent, and goes on as soon as the link has room for the message the op produced. The
// micro-batches of a link arrive in the order they were sent (Check proves that both ends agree on it), so a count per
// link and direction says all. Two stages on one device have a link between them like any other.
//
// The work is O(ops) and allocates per device and stage only.
type traversal struct {
	plan  Plan
	home  []int // device of each stage
	depth int   // messages one direction of a link holds; 0: any number

	until   []int  // per device: the position it stops before, the end of its list unless told otherwise
	next    []int  // per device: position of the op it runs next
	holding []bool // per device: the op at next has run, its message waits for room on the link

	activations []traffic // per link s -> s+1
	gradients   []traffic // per link s+1 -> s

	ready  []int // devices to look at, a stack
	queued []bool
}

// traffic counts the messages of one direction of a link.
type traffic struct{ sent, taken int }

func (t traffic) inFlight() int       { return t.sent - t.taken }
func (t traffic) empty() bool         { return t.sent == t.taken }
func (t traffic) full(depth int) bool { return depth > 0 && t.sent-t.taken >= depth }

func newTraversal(plan Plan, depth int) *traversal {
	home := plan.Placement()
	t := &traversal{
		plan: plan, home: home, depth: depth,
		until: make([]int, len(plan)), next: make([]int, len(plan)), holding: make([]bool, len(plan)), queued: make([]bool, len(plan)),
		activations: make([]traffic, len(home)-1), gradients: make([]traffic, len(home)-1),
	}
	for d := len(plan) - 1; d >= 0; d-- {
		t.until[d] = len(plan[d])
		t.wake(d)
	}
	return t
}

// run executes ops until none can go on, and calls visit for each, after the ops it depends on. It reports whether all of
// them ran.
func (t *traversal) run(visit func(device, position int)) bool {
	for len(t.ready) > 0 {
		d := t.ready[len(t.ready)-1]
		t.ready = t.ready[:len(t.ready)-1]
		t.queued[d] = false
		t.advance(d, visit)
	}
	for d, ops := range t.plan {
		if t.next[d] < len(ops) {
			return false
		}
	}
	return true
}

func (t *traversal) wake(d int) {
	if !t.queued[d] && t.next[d] < t.until[d] {
		t.queued[d] = true
		t.ready = append(t.ready, d)
	}
}

// advance runs device d as far as it can go.
func (t *traversal) advance(d int, visit func(device, position int)) {
	for t.next[d] < t.until[d] {
		op := t.plan[d][t.next[d]]
		if !t.holding[d] {
			if !t.take(op) {
				return
			}
			visit(d, t.next[d])
			t.holding[d] = true
		}
		if !t.send(op) {
			return
		}
		t.holding[d] = false
		t.next[d]++
	}
}

// take consumes the message that an op needs, if it needs one, and reports whether it was there.
func (t *traversal) take(op Op) bool {
	var in *traffic
	from := op.Stage - 1
	switch {
	case crossesDown(op.Kind) && op.Stage > 0:
		in = &t.activations[op.Stage-1]
	case crossesUp(op.Kind) && op.Stage+1 < len(t.home):
		in, from = &t.gradients[op.Stage], op.Stage+1
	default:
		return true
	}
	if in.empty() {
		return false
	}
	in.taken++
	t.wake(t.home[from])
	return true
}

// send puts the message that an op produces, if it produces one, on its link and reports whether there was room.
func (t *traversal) send(op Op) bool {
	var out *traffic
	to := op.Stage + 1
	switch {
	case crossesDown(op.Kind) && op.Stage+1 < len(t.home):
		out = &t.activations[op.Stage]
	case crossesUp(op.Kind) && op.Stage > 0:
		out, to = &t.gradients[op.Stage-1], op.Stage-1
	default:
		return true
	}
	if out.full(t.depth) {
		return false
	}
	out.sent++
	t.wake(t.home[to])
	return true
}
