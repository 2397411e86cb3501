package schedule

import (
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
)

// checkLinks proves that both ends of each link agree on the order of its micro-batches, in both directions.
func checkLinks(plan Plan, work []stageOps) error {
	for s := range len(work) - 1 {
		if err := checkLink(plan, work[s], work[s+1], crossesDown); err != nil {
			return err
		}
		if err := checkLink(plan, work[s+1], work[s], crossesUp); err != nil {
			return err
		}
	}
	return nil
}

// crossesDown reports whether an op ends in a message to the next stage, and takes one from the stage before.
func crossesDown(k Kind) bool { return k == Forward }

// crossesUp reports whether an op ends in a message to the stage before, and takes one from the next stage.
func crossesUp(k Kind) bool { return k == Backward || k == BackwardInput }

// checkLink compares the micro-batches of the ops that cross from one stage to its neighbour.
func checkLink(plan Plan, from, to stageOps, crosses func(Kind) bool) error {
	sends, takes := plan[from.device], plan[to.device]
	i := nextCrossing(sends, from.at, 0, crosses)
	for j := nextCrossing(takes, to.at, 0, crosses); j < len(to.at); j = nextCrossing(takes, to.at, j+1, crosses) {
		sent, taken := sends[from.at[i]], takes[to.at[j]]
		if sent.Micro != taken.Micro {
			message := fmt.Sprintf("%s takes the message of micro-batch %d, but stage %d sends that of %s first; a link delivers in order, so both must agree",
				plan.label(taken), taken.Micro, sent.Stage, plan.label(sent))
			return plan.fault(Misordered, cell{to.device, int(to.at[j])}, map[int]int{from.device: int(from.at[i])}, message)
		}
		i = nextCrossing(sends, from.at, i+1, crosses)
	}
	return nil
}

// nextCrossing is the first index at or after i into the positions at whose op crosses, or len(at).
func nextCrossing(ops []Op, at []int32, i int, crosses func(Kind) bool) int {
	for i < len(at) && !crosses(ops[at[i]].Kind) {
		i++
	}
	return i
}

// checkProgress reports devices that wait for each other. It calls visit for each op, after the ops it depends on.
func checkProgress(plan Plan, depth int, visit func(device, position int)) error {
	t := newTraversal(plan, depth)
	if t.run(visit) {
		return nil
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
			why = append(why, fmt.Sprintf("%s %d %s", plan.rowName(), d, t.waitsFor(d)))
		}
	}
	if len(stuck) > len(why) {
		why = append(why, words.Count(len(stuck)-len(why), plan.rowName())+" more")
	}
	return plan.fault(Deadlock, cell{first, stuck[first]}, stuck, strings.Join(why, "; "))
}

// waitsFor says what keeps a stuck device from going on.
func (t *traversal) waitsFor(d int) string {
	op := t.plan[d][t.next[d]]
	neighbour := op.Stage - 1
	if (op.Kind == Forward) == t.holding[d] { // a forward sends to the next stage, a backward takes from it
		neighbour = op.Stage + 1
	}
	if t.holding[d] {
		return fmt.Sprintf("has run %s and waits for room on the link to stage %d, which holds %d", t.plan.label(op), neighbour, t.depth)
	}
	return fmt.Sprintf("waits with %s for stage %d to send micro-batch %d", t.plan.label(op), neighbour, op.Micro)
}
