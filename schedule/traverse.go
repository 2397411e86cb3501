package schedule

// traversal runs a plan in an order its dependencies allow, without a clock: a stage runs its next op as soon as the
// message the op consumes has been sent, and goes on as soon as the link has room for the message the op produced. The
// micro-batches of a link arrive in the order they were sent (Check proves that both ends agree on it), so a count per
// link and direction says all.
//
// The work is O(ops) and allocates per stage only.
type traversal struct {
	plan  Plan
	depth int // messages one direction of a link holds; 0: any number

	next    []int  // per stage: position of the op it runs next
	holding []bool // per stage: the op at next has run, its message waits for room on the link

	activations []traffic // per link k -> k+1
	gradients   []traffic // per link k+1 -> k

	ready  []int // stages to look at, a stack
	queued []bool
}

// traffic counts the messages of one direction of a link.
type traffic struct{ sent, taken int }

func (t traffic) empty() bool         { return t.sent == t.taken }
func (t traffic) full(depth int) bool { return depth > 0 && t.sent-t.taken >= depth }

func newTraversal(plan Plan, depth int) *traversal {
	stages := len(plan)
	t := &traversal{
		plan: plan, depth: depth,
		next: make([]int, stages), holding: make([]bool, stages), queued: make([]bool, stages),
		activations: make([]traffic, stages-1), gradients: make([]traffic, stages-1),
	}
	for k := stages - 1; k >= 0; k-- {
		t.wake(k)
	}
	return t
}

// run executes ops until none can go on, and calls visit for each, after the ops it depends on. It reports whether all of
// them ran.
func (t *traversal) run(visit func(stage, position int)) bool {
	left := t.plan.Ops()
	for len(t.ready) > 0 {
		k := t.ready[len(t.ready)-1]
		t.ready = t.ready[:len(t.ready)-1]
		t.queued[k] = false
		before := t.next[k]
		progress := t.advance(k, visit)
		left -= t.next[k] - before
		if progress && k > 0 {
			t.wake(k - 1)
		}
		if progress && k+1 < len(t.plan) {
			t.wake(k + 1)
		}
	}
	return left == 0
}

func (t *traversal) wake(k int) {
	if !t.queued[k] && t.next[k] < len(t.plan[k]) {
		t.queued[k] = true
		t.ready = append(t.ready, k)
	}
}

// advance runs stage k as far as it can go and reports whether it did anything.
func (t *traversal) advance(k int, visit func(stage, position int)) bool {
	progress := false
	for t.next[k] < len(t.plan[k]) {
		kind := t.plan[k][t.next[k]].Kind
		if !t.holding[k] {
			in := t.input(k, kind)
			if in != nil {
				if in.empty() {
					return progress
				}
				in.taken++
			}
			visit(k, t.next[k])
			t.holding[k] = true
			progress = true
		}
		if out := t.output(k, kind); out != nil {
			if out.full(t.depth) {
				return progress
			}
			out.sent++
		}
		t.holding[k] = false
		t.next[k]++
		progress = true
	}
	return progress
}

// input is the link direction that an op of stage k takes its message from, nil when it needs none.
func (t *traversal) input(k int, kind Kind) *traffic {
	switch {
	case kind == Forward && k > 0:
		return &t.activations[k-1]
	case (kind == Backward || kind == BackwardInput) && k+1 < len(t.plan):
		return &t.gradients[k]
	}
	return nil
}

// output is the link direction that an op of stage k sends its message to, nil when it sends none.
func (t *traversal) output(k int, kind Kind) *traffic {
	switch {
	case kind == Forward && k+1 < len(t.plan):
		return &t.activations[k]
	case (kind == Backward || kind == BackwardInput) && k > 0:
		return &t.gradients[k-1]
	}
	return nil
}
