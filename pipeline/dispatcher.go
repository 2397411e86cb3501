package pipeline

import (
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
)

// dispatcher runs one pipeline's ops on one device, a row of the plan, again and again and in the plan's order. A row has an
// runner for each of its stages. An op starts when its stage has begun the plan and the op's input has arrived. After a stage's
// last op of the plan its runner does the rest (the norm, the optimizer, the round) while other stages of the row go on; the
// first op after that may run while another stage still waits for its round.
//
// The goroutine that brings the last input of the next op dispatches it: arrived, called by a link, checks whether all inputs are
// there and then queues the dispatcher on the executor; run, on the executor, computes one op, sends its result and queues the
// dispatcher again if the op after it can run as well. A dispatcher has one op in the queue at a time, so the pipelines of a device
// alternate, first come, first served.
type dispatcher struct {
	cells    []cell
	executor *executor
	queue    int // of the device
	trace    trace.Listener

	mu     sync.Mutex // also of the runners' state
	queued bool       // the next op is in the executor's queue, or runs
	next   int        // index of the next op
	since  time.Duration
	ready  time.Duration // when the next op had all it needs
}

// cell is an op of the row with what is known of it beforehand.
type cell struct {
	schedule.Op
	runner *runner
	batch  int  // of those that the plan runs on across, 0-based
	index  int  // of the micro-batch, in its batch
	ends   bool // the batch: it is the last of its ops on the stage
	last   bool // of the stage's ops in the plan
	final  bool // the last backward, or weight half, of the stage before an optimizer step
	first  bool // the first backward, input half or weight half of the stage
	// Of an update: which one of the plan, 0-based, and the older versions of the weights that passes after it still read.
	update int
	stash  []int
}

// name is the op as its batch calls it.
func (c *cell) name() string {
	op := c.Op
	op.Micro = c.index
	return op.String()
}

// cellsOf prepares a row of the plan, with so many micro-batches in a batch. runners are by stage.
func cellsOf(row []schedule.Op, runners map[int]*runner, micros int) []cell {
	cells := make([]cell, len(row))
	last := map[int]int{}
	ends := map[[2]int]int{} // by stage and batch
	for i, op := range row {
		cells[i] = cell{Op: op, runner: runners[op.Stage], batch: op.Micro / micros, index: op.Micro % micros}
		last[op.Stage], ends[[2]int{op.Stage, cells[i].batch}] = i, i
	}
	for _, i := range last {
		cells[i].last = true
	}
	for _, i := range ends {
		cells[i].ends = true
	}
	for s := range runners {
		stashes(cells, s)
		finals(cells, s)
		firsts(cells, s)
	}
	return cells
}

// finals finds the ops that make a stage's gradients final.
func finals(cells []cell, stage int) {
	last := -1
	mark := func() {
		if last >= 0 {
			cells[last].final = true
		}
		last = -1
	}
	for i, c := range cells {
		switch {
		case c.Stage != stage:
		case c.Kind == schedule.Update:
			mark()
		case c.Kind == schedule.Backward || c.Kind == schedule.BackwardWeight:
			last = i
		}
	}
	mark()
}

// stashes numbers the updates of a stage and finds which versions of its weights outlive each.
func stashes(cells []cell, stage int) {
	reads := map[int]int{}    // micro-batch -> the version that it reads
	lastRead := map[int]int{} // version -> its last reader
	for i, c := range cells {
		if c.Stage != stage || c.Kind == schedule.Update {
			continue
		}
		if c.Kind == schedule.Forward {
			reads[c.Micro] = c.Version
		}
		lastRead[reads[c.Micro]] = i
	}
	updates := 0
	var live []int // versions that some pass after the update before still reads, and the newest
	for i := range cells {
		c := &cells[i]
		if c.Stage != stage || c.Kind != schedule.Update {
			continue
		}
		live = slices.DeleteFunc(append(live, updates), func(v int) bool { return lastRead[v] <= i })
		c.update, c.stash = updates, slices.Clone(live)
		updates++
	}
}

// arrived dispatches the next op if it can run now.
func (d *dispatcher) arrived() {
	d.mu.Lock()
	d.unlockAndAdvance()
}

// unlockAndAdvance queues the next op if all it needs has arrived, and releases mu: before it queues, or the executor would
// be woken only to wait for mu.
func (d *dispatcher) unlockAndAdvance() {
	queue := !d.queued && d.advance()
	d.mu.Unlock()
	if queue {
		d.executor.submit(d)
	}
}

// advance reports whether the next op can run, and then counts it as queued. The caller holds mu; no op is queued or runs.
func (d *dispatcher) advance() bool {
	c := &d.cells[d.next]
	if !c.runner.active {
		return false
	}
	ok, err := c.runner.gather(c)
	if err != nil {
		c.runner.finish(c, c.runner.fault(c.runner.stepOf(c), c.name(), err))
		return false
	}
	if ok {
		d.queued, d.ready = true, trace.Now()
	}
	return ok
}

// run implements work: it computes the next op.
func (d *dispatcher) run() {
	d.mu.Lock()
	c := &d.cells[d.next]
	r := c.runner
	if !r.active {
		d.mu.Unlock()
		return
	}
	o := issued{cell: c, inFlight: r.claim(c.Op), step: r.stepOf(c), ready: d.ready}
	r.active = !c.last
	d.mu.Unlock()

	o.start = trace.Now()
	d.executor.turn(d.queue)
	err := r.compute(&o)
	if event := r.stage.Ready(); err == nil && event != nil {
		d.endLater(event, o)
	} else {
		d.end(o, err)
	}
	d.mu.Lock()
	d.queued = false
	if d.next++; d.next == len(d.cells) {
		d.next = 0
	}
	d.unlockAndAdvance()
}

// issued is an op that its device has been given.
type issued struct {
	*cell
	*inFlight
	step         uint64
	ready, start time.Duration
	// what it makes, and the link that takes it; nil: it makes nothing that leaves the stage
	made wire.Frame
	link wire.End
}

// endLater ends an op when an event has passed.
func (d *dispatcher) endLater(event stage.Event, o issued) {
	d.executor.later(d.queue, event, func(err error) { d.end(o, err) })
}

// end ends an op that has ended on the device: it tells of it and sends what it made.
func (d *dispatcher) end(o issued, err error) {
	r, now := o.runner, trace.Now()
	d.mu.Lock()
	since := max(d.since, r.begun)
	d.since = now
	d.mu.Unlock()
	// An op that was handed in before the one before it had ended began when that had.
	ready := max(o.ready, since)
	r.emit(&o, since, ready, max(o.start, ready), now)
	if err = r.leave(&o, err); err != nil {
		err = r.fault(o.step, o.name(), err)
	}
	if err != nil || o.ends {
		d.mu.Lock()
		r.finish(o.cell, err)
		d.mu.Unlock()
	}
}

// drop implements work.
func (d *dispatcher) drop(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queued = false
	c := &d.cells[d.next]
	c.runner.finish(c, c.runner.fault(c.runner.stepOf(c), c.name(), err))
}

// groupsOf are the micro-batches whose gradients an optimizer step takes together: the last of each group, ascending.
func groupsOf(row []schedule.Op, stage, micros int) []int {
	var groups []int
	for _, op := range row {
		if op.Kind == schedule.Update && op.Stage == stage {
			groups = append(groups, op.Micro)
		}
	}
	if len(groups) == 0 {
		return []int{micros - 1}
	}
	slices.Sort(groups)
	return groups
}
