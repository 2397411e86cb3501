package schedule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
)

// traversal runs a plan without a clock, in an order that its dependencies allow: a device runs its next op as soon as the
// message that the op consumes has been sent. A link delivers in order, and holds any number of messages. Two stages on one device
// have a link between them like any other.
//
// The work is O(ops).
type traversal struct {
	plan Plan
	home []int // device of each stage
	next []int // per device: position of the op it runs next

	inboxes []traffic // of what stages receive: [stage*ways + way]

	ready  []int // devices to look at, a stack
	queued []bool
}

// traffic is what has crossed one direction of a link.
type traffic struct {
	sent  []int32 // positions of the ops that sent, in the sender's row, since all was taken before
	taken int
}

func newTraversal(plan Plan) *traversal {
	home := plan.Placement()
	t := &traversal{
		plan: plan, home: home, next: make([]int, len(plan)), inboxes: make([]traffic, ways*len(home)), queued: make([]bool, len(plan)),
	}
	for d := range slices.Backward(plan) {
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

// The ways that messages go: to the next stage, and to the one before.
const (
	down = iota
	up
	ways
)

// route says which way the messages of an op go, in a plan of so many stages, and the stages that it takes one from and sends one to: -1
// for none.
func route(kind Kind, stage, stages int) (way, from, to int) {
	switch kind {
	case Forward, Kind(addNorm):
		way, from, to = down, stage-1, stage+1
	case Backward, BackwardInput, Kind(takeNorm):
		way, from, to = up, stage+1, stage-1
	default:
		return down, -1, -1
	}
	if from == stages {
		from = -1
	}
	if to == stages {
		to = -1
	}
	return way, from, to
}

// take consumes the message that an op needs, if it needs one, and reports whether it was there.
func (t *traversal) take(d int, op Op) (bool, error) {
	way, from, _ := route(op.Kind, op.Stage, len(t.home))
	if from < 0 {
		return true, nil
	}
	in := &t.inboxes[ways*op.Stage+way]
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
	if way, _, to := route(op.Kind, op.Stage, len(t.home)); to >= 0 {
		in := &t.inboxes[ways*to+way]
		if in.taken == len(in.sent) {
			in.sent, in.taken = in.sent[:0], 0
		}
		in.sent = append(in.sent, int32(t.next[d])) //nolint:gosec // a row is far shorter
		t.wake(t.home[to])
	}
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
			_, neighbour, _ := route(op.Kind, op.Stage, len(t.home))
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
