package schedule

import (
	"errors"
	"fmt"
	"strings"
)

// Limits bounds what a plan may use. The zero value sets no limit.
type Limits struct {
	// Pinned is, per stage, how many micro-batches its memory holds between their forward and their backward; 0 is no
	// limit on that stage. Nil is no limit at all.
	Pinned []int
	// LinkDepth is how many messages one direction of a link holds; a stage with one more to send waits. 0 is no limit.
	LinkDepth int
}

func (l Limits) validate(stages int) error {
	if l.LinkDepth < 0 {
		return fmt.Errorf("link depth is %d; want 1 or more, or 0 for no limit", l.LinkDepth)
	}
	return validatePinned(l.Pinned, stages)
}

func validatePinned(pinned []int, stages int) error {
	if pinned != nil && len(pinned) != stages {
		return fmt.Errorf("%d pinned limits for %s; want one a stage, or none", len(pinned), countOf(stages, "stage"))
	}
	for k, n := range pinned {
		if n < 0 {
			return fmt.Errorf("pinned limit of stage %d is %d; want 1 or more, or 0 for no limit", k, n)
		}
	}
	return nil
}

// Check proves that a plan can run a batch of microBatches on links that deliver in order:
//   - every stage does each micro-batch's forward exactly once and its backward exactly once, whole or as two halves;
//   - a backward comes after its forward, a weight half after its input half;
//   - both ends of a link agree on the order of the micro-batches that cross it;
//   - no stage pins more micro-batches than the limits allow;
//   - no set of stages wait for each other, with the links as deep as the limits say.
//
// A fault of the plan is an error of type *PlanError.
func Check(plan Plan, microBatches int, limits Limits) error {
	if err := limits.validate(len(plan)); err != nil {
		return fmt.Errorf("schedule: check: %w", err)
	}
	if err := checkOrder(plan, microBatches); err != nil {
		return err
	}
	if err := checkPinned(plan, limits.Pinned); err != nil {
		return err
	}
	return checkProgress(plan, limits.LinkDepth, func(_, _ int) {})
}

// checkOrder proves what does not depend on limits, up to deadlock.
func checkOrder(plan Plan, microBatches int) error {
	if len(plan) == 0 {
		return errors.New("schedule: the plan has no stages; want at least 1")
	}
	if microBatches < 1 {
		return fmt.Errorf("schedule: %d micro-batches; want at least 1", microBatches)
	}
	if err := checkStages(plan, microBatches); err != nil {
		return err
	}
	return checkLinks(plan)
}

// checkStages proves that each stage, by itself, does all work once and in an order that makes sense.
func checkStages(plan Plan, microBatches int) error {
	// A plan too short for its micro-batches is found before memory is taken for them.
	for k, ops := range plan {
		if len(ops)/2 < microBatches {
			done := make(map[Op]bool, len(ops))
			for _, op := range ops {
				done[op] = true
			}
			if err := missingWork(plan, k, microBatches, func(op Op) bool { return done[op] }); err != nil {
				return err
			}
		}
	}
	done := make([]kindSet, microBatches)
	for k, ops := range plan {
		clear(done)
		for i, op := range ops {
			if op.Stage != k || op.Kind == Update {
				return plan.fault(OutOfRange, cell{k, i}, nil, fmt.Sprintf("%s: a device runs its own stage, and no updates", plan.label(op)))
			}
			if problem, message := checkOp(op, done); message != "" {
				return plan.fault(problem, cell{k, i}, nil, message)
			}
			done[op.Micro] = done[op.Micro].with(op.Kind)
		}
		if err := missingWork(plan, k, microBatches, func(op Op) bool { return done[op.Micro].has(op.Kind) }); err != nil {
			return err
		}
	}
	return nil
}

// kindSet is a set of kinds: bit k for Kind k.
type kindSet uint8

func (s kindSet) has(k Kind) bool     { return s&(1<<k) != 0 }
func (s kindSet) with(k Kind) kindSet { return s | 1<<k }

// checkOp says what is wrong with an op after the work that done holds, or returns an empty message.
func checkOp(op Op, done []kindSet) (Problem, string) {
	if int(op.Kind) >= len(kindLetters) {
		return OutOfRange, fmt.Sprintf("kind %d does not exist; want Forward, Backward, BackwardInput or BackwardWeight", op.Kind)
	}
	if op.Micro < 0 || op.Micro >= len(done) {
		return OutOfRange, fmt.Sprintf("%v: the batch has %s; want a number from 0 to %d", op, countOf(len(done), "micro-batch"), len(done)-1)
	}
	before := done[op.Micro]
	other := func(k Kind) Op { return Op{Kind: k, Stage: op.Stage, Micro: op.Micro} }
	switch op.Kind {
	case Forward, Update:
		// Nothing precedes a forward on its own stage.
	case Backward:
		if before.has(BackwardInput) {
			return Repeated, fmt.Sprintf("%v: %v has already run; finish that backward with %v", op, other(BackwardInput), other(BackwardWeight))
		}
	case BackwardInput:
		if before.has(Backward) {
			return Repeated, fmt.Sprintf("%v: %v has already run and computes both halves", op, other(Backward))
		}
	case BackwardWeight:
		if before.has(Backward) {
			return Repeated, fmt.Sprintf("%v: %v has already run and computes both halves", op, other(Backward))
		}
		if !before.has(BackwardInput) {
			return Premature, fmt.Sprintf("%v runs before its input half; put %v first", op, other(BackwardInput))
		}
	}
	if before.has(op.Kind) {
		return Repeated, fmt.Sprintf("%v runs a second time; want each once", op)
	}
	if op.Kind != Forward && !before.has(Forward) {
		return Premature, fmt.Sprintf("%v runs before its forward; put %v first", op, other(Forward))
	}
	return 0, ""
}

// missingWork reports the first work that stage k never does.
func missingWork(plan Plan, k, microBatches int, done func(Op) bool) error {
	for m := range microBatches {
		forward, whole := Op{Kind: Forward, Stage: k, Micro: m}, Op{Kind: Backward, Stage: k, Micro: m}
		input, weight := Op{Kind: BackwardInput, Stage: k, Micro: m}, Op{Kind: BackwardWeight, Stage: k, Micro: m}
		var missing string
		switch {
		case !done(forward):
			missing = forward.String()
		case !done(whole) && !done(input):
			missing = fmt.Sprintf("%v (or %v and %v)", whole, input, weight)
		case !done(whole) && !done(weight):
			missing = weight.String()
		default:
			continue
		}
		message := fmt.Sprintf("%s never runs; want each of %s once", missing, countOf(microBatches, "micro-batch"))
		return plan.fault(Missing, cell{k, len(plan[k])}, nil, message)
	}
	return nil
}

// checkLinks proves that both ends of each link agree on the order of its micro-batches, in both directions.
func checkLinks(plan Plan) error {
	for k := range len(plan) - 1 {
		if err := checkLink(plan, k, k+1, crossesDown); err != nil {
			return err
		}
		if err := checkLink(plan, k+1, k, crossesUp); err != nil {
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
func checkLink(plan Plan, from, to int, crosses func(Kind) bool) error {
	i := nextCrossing(plan[from], 0, crosses)
	for j := nextCrossing(plan[to], 0, crosses); j < len(plan[to]); j = nextCrossing(plan[to], j+1, crosses) {
		sent, taken := plan[from][i], plan[to][j]
		if sent.Micro != taken.Micro {
			message := fmt.Sprintf("%v takes the message of micro-batch %d, but stage %d sends that of %v first; a link delivers in order, so both must agree",
				taken, taken.Micro, from, sent)
			return plan.fault(Misordered, cell{to, j}, map[int]int{from: i}, message)
		}
		i = nextCrossing(plan[from], i+1, crosses)
	}
	return nil
}

// nextCrossing is the first position at or after i whose op crosses, or len(ops).
func nextCrossing(ops []Op, i int, crosses func(Kind) bool) int {
	for i < len(ops) && !crosses(ops[i].Kind) {
		i++
	}
	return i
}

// checkPinned reports the first forward that pins one micro-batch more than its stage may hold.
func checkPinned(plan Plan, limits []int) error {
	for k, limit := range limits {
		pinned := 0
		for i, op := range plan[k] {
			pinned += pinnedBy(op.Kind)
			if limit > 0 && pinned > limit {
				message := fmt.Sprintf("%v pins micro-batch %d of at most %d; run a backward first, or take a schedule that pins less",
					op, pinned, limit)
				return plan.fault(OverLimit, cell{k, i}, nil, message)
			}
		}
	}
	return nil
}

// checkProgress reports stages that wait for each other. It calls visit for each op, after the ops it depends on.
func checkProgress(plan Plan, depth int, visit func(stage, position int)) error {
	t := newTraversal(plan, depth)
	if t.run(visit) {
		return nil
	}
	stuck := make(map[int]int) // stage -> position
	var why []string
	first := -1
	for k, i := range t.next {
		if i == len(plan[k]) {
			continue
		}
		stuck[k] = i
		if first < 0 {
			first = k
		}
		if len(why) < 4 {
			why = append(why, fmt.Sprintf("stage %d %s", k, t.waitsFor(k)))
		}
	}
	if len(stuck) > len(why) {
		why = append(why, countOf(len(stuck)-len(why), "stage")+" more")
	}
	return plan.fault(Deadlock, cell{first, stuck[first]}, stuck, strings.Join(why, "; "))
}

// waitsFor says what keeps a stuck stage from going on.
func (t *traversal) waitsFor(k int) string {
	op := t.plan[k][t.next[k]]
	neighbour := k - 1
	if (op.Kind == Forward) == t.holding[k] { // a forward sends to the next stage, a backward takes from it
		neighbour = k + 1
	}
	if t.holding[k] {
		return fmt.Sprintf("has run %v and waits for room on the link to stage %d, which holds %d", op, neighbour, t.depth)
	}
	return fmt.Sprintf("waits with %v for stage %d to send micro-batch %d", op, neighbour, op.Micro)
}
