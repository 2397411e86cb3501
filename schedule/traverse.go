package schedule

import (
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
)

// traversal runs a plan without a clock, in an order that its dependencies allow: a device runs its next op as soon as the
// message that the op consumes has been sent. A link delivers in order, and holds any number of messages. Two stages on one device
// have a link between them like any other.
//
// The work is O(ops).
type traversal struct {
	plan  Plan
	home  []int // device of each stage
	next  []int // per device: position of the op it runs next

	activations []traffic // per link s -> s+1
	gradients   []traffic // per link s+1 -> s

	ready  []int // devices to look at, a stack
	queued []bool
}

// traffic is what has crossed one direction of a link.
type traffic struct {
	sent  []int32 // positions of the ops that sent, in the sender's row
	taken int
}

func newTraversal(plan Plan) *traversal {
	home := plan.Placement()
	t := &traversal{
		plan: plan, home: home,
		next: make([]int, len(plan)), queued: make([]bool, len(plan)),
		activations: make([]traffic, len(home)-1), gradients: make([]traffic, len(home)-1),
	}
	for d := len(plan) - 1; d >= 0; d-- {
		t.wake(d)
	}
	return t
}

// run executes ops until none can go on. The error is of a message other than the one that its receiver expects.
func (t *traversal) run() error {
	for len(t.ready) > 0 {
		d := t.ready[len(t.ready)-1]
		t.ready = t.ready[:len(t.ready)-1]
		t.queued[d] = false
		for ; t.next[d] < len(t.plan[d]); t.next[d]++ {
			op := t.plan[d][t.next[d]]
			if taken, err := t.take(d, op); !taken {
				if err != nil {
					return err
				}
				break
			}
			t.send(d, op)
		}
	}
	return nil
}

func (t *traversal) wake(d int) {
	if !t.queued[d] && t.next[d] < len(t.plan[d]) {
		t.queued[d] = true
		t.ready = append(t.ready, d)
	}
}

// crossesDown reports whether an op ends in a message to the next stage, and takes one from the stage before.
func crossesDown(k Kind) bool { return k == Forward }

// crossesUp reports whether an op ends in a message to the stage before, and takes one from the next stage.
func crossesUp(k Kind) bool { return k == Backward || k == BackwardInput }

// take consumes the message that an op needs, if it needs one, and reports whether it was there.
func (t *traversal) take(d int, op Op) (bool, error) {
	var in *traffic
	from := op.Stage - 1
	switch {
	case crossesDown(op.Kind) && op.Stage > 0:
		in = &t.activations[op.Stage-1]
	case crossesUp(op.Kind) && op.Stage+1 < len(t.home):
		in, from = &t.gradients[op.Stage], op.Stage+1
	default:
		return true, nil
	}
	if in.taken == len(in.sent) {
		return false, nil
	}
	position := int(in.sent[in.taken])
	if sent := t.plan[t.home[from]][position]; sent.Micro != op.Micro {
		message := fmt.Sprintf("%s takes the message of micro-batch %d, but stage %d sends that of %s first; a link delivers in order, so both must agree",
			t.plan.label(op), op.Micro, sent.Stage, t.plan.label(sent))
		return false, t.plan.fault(Misordered, cell{d, t.next[d]}, map[int]int{t.home[from]: position}, message)
	}
	in.taken++
	return true, nil
}

// send puts the message that an op produces, if it produces one, on its link.
func (t *traversal) send(d int, op Op) {
	var out *traffic
	to := op.Stage + 1
	switch {
	case crossesDown(op.Kind) && op.Stage+1 < len(t.home):
		out = &t.activations[op.Stage]
	case crossesUp(op.Kind) && op.Stage > 0:
		out, to = &t.gradients[op.Stage-1], op.Stage-1
	default:
		return
	}
	out.sent = append(out.sent, int32(t.next[d])) //nolint:gosec // a row is far shorter
	t.wake(t.home[to])
}

// checkProgress proves that both ends of each link agree on the order of its micro-batches, and that devices do not wait for each
// other for ever.
func checkProgress(plan Plan) error {
	t := newTraversal(plan)
	if err := t.run(); err != nil {
		return err
	}
	stuck := make(map[int]int) // device -> position
	var why []string
	first := -1
	for d, i := range t.next {
		if i == len(plan[d]) {
			continue
		}
		stuck[d] = i
		if first < 0 {
			first = d
		}
		if len(why) < 4 {
			op := plan[d][i]
			neighbour := op.Stage + 1
			if op.Kind == Forward {
				neighbour = op.Stage - 1
			}
			why = append(why, fmt.Sprintf("%s %d waits with %s for stage %d to send micro-batch %d", plan.rowName(), d, plan.label(op), neighbour, op.Micro))
		}
	}
	if first < 0 {
		return nil
	}
	if len(stuck) > len(why) {
		why = append(why, words.Count(len(stuck)-len(why), plan.rowName())+" more")
	}
	return plan.fault(Deadlock, cell{first, stuck[first]}, stuck, strings.Join(why, "; "))
}
