package schedule

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/words"
)

// checkStages proves that each stage, by itself, does all work once and in an order that makes sense, and that all stages take
// the same updates, one of them where each batch of so many micro-batches ends.
func checkStages(plan Plan, work []stageOps, microBatches, batch int) error {
	// No stage has an op for each of more micro-batches than the plan has ops, which bounds the memory taken for them.
	c := stageCheck{plan: plan, microBatches: microBatches, batch: batch, done: make([]kindSet, min(microBatches, plan.Ops()+1))}
	for s, w := range work {
		if err := c.check(s, w); err != nil {
			return err
		}
	}
	return nil
}

// kindSet is a set of kinds: bit k for Kind k.
type kindSet uint8

func (s kindSet) has(k Kind) bool     { return s&(1<<k) != 0 }
func (s kindSet) with(k Kind) kindSet { return s | 1<<k }
func (s kindSet) finished() bool      { return s.has(Backward) || s.has(BackwardWeight) }

// stageCheck follows the work of one stage after another.
type stageCheck struct {
	plan         Plan
	microBatches int       // in the plan
	batch        int       // in a batch
	done         []kindSet // per micro-batch, of the stage at hand; of the first ones where the plan has too few ops for all
	updates      []int     // the micro-batches after which stage 0 updates

	// Of the stage at hand:
	largest int // micro-batch of a backward begun, -1 before the first
	ended   int // backwards
	updated int // updates taken
	began   int // first micro-batch whose gradient no update has taken
}

// check proves the order of work of stage s.
func (c *stageCheck) check(s int, w stageOps) error {
	clear(c.done)
	c.largest, c.ended, c.updated, c.began = -1, 0, 0, 0
	for _, i := range w.at {
		op := c.plan[w.device][i]
		if op.Micro >= len(c.done) && op.Micro < c.microBatches {
			continue // a micro-batch before it is missing
		}
		problem, message := c.checkOp(op)
		if message == "" && op.Kind == Update {
			problem, message = c.checkUpdate(op)
		}
		if message != "" {
			return c.plan.fault(problem, cell{w.device, int(i)}, nil, message)
		}
		c.follow(op)
	}
	if err := c.missingWork(s, w); err != nil {
		return err
	}
	return c.missingUpdate(s, w)
}

// follow takes note of an op that may stand where it does.
func (c *stageCheck) follow(op Op) {
	c.done[op.Micro] = c.done[op.Micro].with(op.Kind)
	switch op.Kind {
	case Forward:
	case Backward:
		c.ended++
		c.largest = max(c.largest, op.Micro)
	case BackwardInput:
		c.largest = max(c.largest, op.Micro)
	case BackwardWeight:
		c.ended++
	case Update:
		if op.Stage == 0 {
			c.updates = append(c.updates, op.Micro)
		}
		c.updated++
		c.began = op.Micro + 1
	}
}

// checkOp says what is wrong with an op after the work of its stage that is done, or returns an empty message.
func (c *stageCheck) checkOp(op Op) (Problem, string) {
	if int(op.Kind) >= len(kindLetters) {
		return OutOfRange, fmt.Sprintf("kind %d does not exist; want Forward, Backward, BackwardInput, BackwardWeight or Update", op.Kind)
	}
	label := func(k Kind) string { return c.plan.label(Op{Kind: k, Stage: op.Stage, Micro: op.Micro}) }
	self := func() string { return c.plan.label(op) }
	if op.Micro < 0 || op.Micro >= len(c.done) {
		return OutOfRange, fmt.Sprintf("%s: the batch has %s; want a number from 0 to %d", self(), words.Count(c.microBatches, "micro-batch"), c.microBatches-1)
	}
	before := c.done[op.Micro]
	switch op.Kind {
	case Update:
	case Forward:
		if op.Version < 0 || op.Version > c.updated {
			return WrongVersion, fmt.Sprintf("%s: the weights of stage %d have taken %s by then; want a version from 0 to %d",
				self(), op.Stage, words.Count(c.updated, "update"), c.updated)
		}
	case Backward:
		if before.has(BackwardInput) {
			return Repeated, fmt.Sprintf("%s: %s has already run; finish that backward with %s", self(), label(BackwardInput), label(BackwardWeight))
		}
	case BackwardInput:
		if before.has(Backward) {
			return Repeated, fmt.Sprintf("%s: %s has already run and computes both halves", self(), label(Backward))
		}
	case BackwardWeight:
		if before.has(Backward) {
			return Repeated, fmt.Sprintf("%s: %s has already run and computes both halves", self(), label(Backward))
		}
		if !before.has(BackwardInput) {
			return Premature, fmt.Sprintf("%s runs before its input half; put %s first", self(), label(BackwardInput))
		}
	}
	switch {
	case before.has(op.Kind):
		return Repeated, self() + " runs a second time; want each once"
	case op.Kind != Forward && op.Version != 0:
		return WrongVersion, fmt.Sprintf("%s: only a forward names the version that its micro-batch reads; write %s", self(), label(op.Kind))
	case op.Kind != Forward && op.Kind != Update && !before.has(Forward):
		return Premature, fmt.Sprintf("%s runs before its forward; put %s first", self(), label(Forward))
	}
	return "", ""
}

// checkUpdate says what is wrong with an update: it takes the gradients of just the backwards up to its micro-batch, so
// those are done and no later one has begun; and it is the one that stage 0 takes as well.
func (c *stageCheck) checkUpdate(op Op) (Problem, string) {
	update := func(m int) string { return c.plan.label(Op{Kind: Update, Stage: op.Stage, Micro: m}) }
	const want = "an update takes the gradients of just the micro-batches up to its own, 0 to %d"
	if c.largest > op.Micro {
		return Misordered, fmt.Sprintf("%s runs after the backward of micro-batch %d has begun; "+want+": put it before, or write %s",
			update(op.Micro), c.largest, op.Micro, update(c.largest))
	}
	if c.ended <= op.Micro {
		open := 0
		for c.done[open].finished() {
			open++
		}
		return Premature, fmt.Sprintf("%s runs before the backward of micro-batch %d is done; "+want+": put %s first",
			update(op.Micro), open, op.Micro, c.rest(op.Stage, open))
	}
	if end := c.began/c.batch*c.batch + c.batch - 1; op.Micro > end {
		return Misordered, fmt.Sprintf("%s takes the gradients of the micro-batches from %d to %d, but a batch of %s ends between them; put %s before",
			update(op.Micro), c.began, op.Micro, words.Count(c.batch, "micro-batch"), update(end))
	}
	if op.Stage > 0 && (c.updated >= len(c.updates) || c.updates[c.updated] != op.Micro) {
		found := fmt.Sprintf("takes %d in all", len(c.updates))
		if c.updated < len(c.updates) {
			found = fmt.Sprintf("takes %s as its update %d", c.plan.label(Op{Kind: Update, Micro: c.updates[c.updated]}), c.updated+1)
		}
		return Misordered, fmt.Sprintf("%s is update %d of stage %d, but stage 0 %s; all stages update after the same micro-batches",
			update(op.Micro), c.updated+1, op.Stage, found)
	}
	return "", ""
}

// rest names the work that is left of a backward.
func (c *stageCheck) rest(stage, micro int) string {
	label := func(k Kind) string { return c.plan.label(Op{Kind: k, Stage: stage, Micro: micro}) }
	if c.done[micro].has(BackwardInput) {
		return label(BackwardWeight)
	}
	return fmt.Sprintf("%s (or %s and %s)", label(Backward), label(BackwardInput), label(BackwardWeight))
}

// missingUpdate reports an update that stage s does not take: one of stage 0, or the one after the last micro-batch.
func (c *stageCheck) missingUpdate(s int, w stageOps) error {
	last := c.microBatches - 1
	var message string
	switch {
	case c.updated < len(c.updates):
		message = fmt.Sprintf("%s never runs; stage 0 takes it, and all stages update after the same micro-batches",
			c.plan.label(Op{Kind: Update, Stage: s, Micro: c.updates[c.updated]}))
	case c.updated > 0 && c.updates[c.updated-1] != last:
		message = c.plan.label(Op{Kind: Update, Stage: s, Micro: last}) +
			" never runs; a plan with updates takes one after its last micro-batch, for the gradients since the one before"
	default:
		return nil
	}
	return c.plan.fault(Missing, cell{w.device, len(c.plan[w.device])}, nil, message)
}

// missingWork reports the first forward or backward that stage s never does.
func (c *stageCheck) missingWork(s int, w stageOps) error {
	for m, done := range c.done {
		var missing string // a label looks at the whole plan, so only what is missing gets one
		switch {
		case !done.has(Forward):
			missing = c.plan.label(Op{Kind: Forward, Stage: s, Micro: m})
		case done.finished():
			continue
		default:
			missing = c.rest(s, m)
		}
		message := fmt.Sprintf("%s never runs; want each of %s once", missing, words.Count(c.microBatches, "micro-batch"))
		return c.plan.fault(Missing, cell{w.device, len(c.plan[w.device])}, nil, message)
	}
	return nil
}
