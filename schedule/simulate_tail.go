package schedule

// endings is what ends the batches of a stage: the exchange of the gradient's norm, the optimizer step and the averaging. As in
// package pipeline, a stage begins with it when its own last op of the batch has ended, beside what is left of its device's row,
// and the next batch's ops on the stage wait for it.
type endings struct {
	stages  int
	last    []int        // per stage: position of its last op in the row
	steps   [][]tailStep // per stage
	arrived []int        // per stage: pipelines that have come to the averaging in progress
}

// tailOp is work at the end of a batch that takes time, as it is recorded.
type tailOp struct {
	stage    int
	time     float64
	averages bool // it is left out in the batches between averagings
}

// tailStep is one thing that a stage does to end a batch.
type tailStep struct {
	kind tailKind
	time float64
	span int // which of the device's tailOps it is; -1 is none
}

type tailKind uint8

const (
	sums     tailKind = iota // adds its part to the norm's square that comes down, and hands it on: a turn of its device
	totals                   // takes the square of the whole norm, and hands it up: no turn
	steps                    // the optimizer step, unless the plan takes them
	averages                 // averaging with the center
)

// normBytes is a message with a norm.
const normBytes = 8

// tailsOf lists, per device, the optimizer steps that the plan leaves to the end of the batch, then the averagings.
func tailsOf(plan Plan, placement []int, costs Costs) [][]tailOp {
	tails := make([][]tailOp, len(plan))
	if plan.Updates() == 0 {
		for s, d := range placement {
			if time := at(costs.Update, s); time > 0 {
				tails[d] = append(tails[d], tailOp{stage: s, time: time})
			}
		}
	}
	for s, d := range placement {
		if time := at(costs.Average, s); time > 0 {
			tails[d] = append(tails[d], tailOp{stage: s, time: time, averages: true})
		}
	}
	return tails
}

// tailOf is the part of a tail that a batch has. Averagings stand at its end.
func tailOf(tail []tailOp, batch, averageEvery int) []tailOp {
	if averageEvery > 0 && (batch+1)%averageEvery == 0 {
		return tail
	}
	for i := range tail {
		if tail[i].averages {
			return tail[:i]
		}
	}
	return tail
}

// newEndings is nil where batches just end.
func newEndings(plan Plan, placement []int, load Load, tails [][]tailOp) *endings {
	n := endings{stages: len(placement), last: make([]int, len(placement)), steps: make([][]tailStep, len(placement)), arrived: make([]int, len(placement))}
	for _, row := range plan {
		for i := range row {
			n.last[row[i].Stage] = i
		}
	}
	some := false
	for s, d := range placement {
		if load.ExchangeNorm {
			n.steps[s] = append(n.steps[s], tailStep{kind: sums, span: -1}, tailStep{kind: totals, span: -1})
		}
		averaging := tailStep{kind: averages, span: -1}
		for i, tail := range tails[d] {
			switch {
			case tail.stage != s:
			case tail.averages:
				averaging.time, averaging.span = tail.time, i
			default:
				n.steps[s] = append(n.steps[s], tailStep{kind: steps, time: tail.time, span: i})
			}
		}
		if load.AverageEvery > 0 && (averaging.time > 0 || load.AwaitRound) {
			n.steps[s] = append(n.steps[s], averaging)
		}
		some = some || len(n.steps[s]) > 0
	}
	if !some {
		return nil
	}
	return &n
}

// tail is the process that ends the batches of a pipeline on a stage.
func (e *engine) tail(p, stage int) int { return e.rows() + p*e.endings.stages + stage }

// beginTail ends a batch of a stage whose ops have ended.
func (e *engine) beginTail(l int, now float64) {
	e.processes[l].next, e.processes[l].free = 0, now
	e.prepareStep(l)
}

// prepareStep finds out when the next step of a tail is ready, and asks the device for a turn then. Without one left, the batch ends.
func (e *engine) prepareStep(l int) {
	v := &e.processes[l]
	all, stage := e.endings.steps[v.stage], int(v.stage)
	averaging := e.load.AverageEvery > 0 && (v.batch+1)%e.load.AverageEvery == 0
	if v.next == len(all) || all[v.next].kind == averages && !averaging {
		e.endTail(v)
		return
	}
	v.ready, v.waits = v.free, forNothing
	switch all[v.next].kind {
	case sums:
		if e.receive(v, e.links.box(v.pipeline, down, stage-1)) {
			e.enter(l)
		}
	case totals:
		if e.receive(v, e.links.box(v.pipeline, up, stage)) {
			e.takeTotal(l)
		}
	case averages:
		e.average(l)
	case steps:
		e.enter(l)
	}
}

// takeTotal ends a step that takes no turn of the device, at the time of its message.
func (e *engine) takeTotal(l int) {
	if e.queue.unsorted {
		e.endStep(l, e.processes[l].ready)
		return
	}
	e.queue.push(event{time: e.processes[l].ready, ready: true, index: int32(l)}) //nolint:gosec // bounded by Load.Validate
}

// average has a tail average with the center: at once, or when those of all pipelines have come to it.
func (e *engine) average(l int) {
	v := &e.processes[l]
	if !e.load.AwaitRound {
		e.enter(l)
		return
	}
	arrived := &e.endings.arrived[v.stage]
	if *arrived++; *arrived < e.load.Pipelines {
		v.waits = forRound
		return
	}
	*arrived = 0
	for p := range e.load.Pipelines {
		other := e.tail(p, int(v.stage))
		e.processes[other].ready, e.processes[other].waits = v.free, forNothing
		e.enter(other)
	}
}

// endStep completes a step.
func (e *engine) endStep(l int, now float64) {
	v := &e.processes[l]
	step, stage := e.endings.steps[v.stage][v.next], int(v.stage)
	if e.spans != nil && step.span >= 0 {
		spans := e.spans[v.pipeline*len(e.plan)+v.device]
		spans[e.spanOf(v.device, v.batch)+len(e.plan[v.device])+step.span] = Span{Start: v.start, End: now}
	}
	v.free = now
	v.next++
	switch step.kind {
	case sums:
		if box := e.links.sendNorm(v.pipeline, down, stage, now); box >= 0 {
			e.wake(v.pipeline, stage+1, box)
		}
	case totals:
		if box := e.links.sendNorm(v.pipeline, up, stage-1, now); box >= 0 {
			e.wake(v.pipeline, stage-1, box)
		}
	case steps, averages:
	}
	e.prepareStep(l)
}

// endTail ends a batch of a stage, which its row may wait for.
func (e *engine) endTail(v *process) {
	e.endBatch(v.pipeline, v.batch, v.free)
	v.batch++
	v.done, v.waits = v.batch == e.load.Batches, forRow
	row := e.row(v)
	if row.waits == forTail && e.plan[v.device][row.next].Stage == int(v.stage) {
		e.prepareRow(v.pipeline*len(e.plan) + v.device)
	}
}
