package pipeline

import (
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/schedule"
)

// walk runs one pipeline's ops on one device, a row of the plan, batch after batch and in the plan's order. A row has a lane for
// each of its stages; an op starts when its lane has begun the batch and the op's input has arrived. What comes after a lane's last
// op of a batch (the norm, the optimizer, the round) is its runner's, beside what is left of the row, and the next
// batch's first op may run while another lane still waits for its round.
//
// The walk's state moves on whichever goroutine brings what the next op needs: poke, called by a link, looks whether all of it is
// there and then queues the walk on the executor; run, on the executor, computes one op, sends what it made and queues the walk again
// if the op after it can run as well. One op at a time, so pipelines on one device take turns, first come, first served.
type walk struct {
	cells    []cell
	executor *Executor
	trace    trace.Listener

	mu     sync.Mutex // also of the lanes' state
	queued bool       // the next op is in the executor's queue, or runs
	next   int        // index of the next op
	since  time.Duration
	ready  time.Duration // when the next op had all it needs
}

// cell is an op of the row with what is known of it beforehand.
type cell struct {
	schedule.Op
	lane *lane
	last bool // of the lane's ops in a batch
	// Of an update: which one of the batch, 0-based, and the older versions of the weights that passes after it still read.
	update int
	stash  []int
}

// cellsOf prepares a row of the plan. lanes are by stage.
func cellsOf(row []schedule.Op, lanes map[int]*lane) []cell {
	cells := make([]cell, len(row))
	last := map[int]int{}
	for i, op := range row {
		cells[i] = cell{Op: op, lane: lanes[op.Stage]}
		last[op.Stage] = i
	}
	for _, i := range last {
		cells[i].last = true
	}
	for s := range lanes {
		stashes(cells, s)
	}
	return cells
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

// poke looks whether the next op can run now.
func (w *walk) poke() {
	w.mu.Lock()
	w.unlockAndAdvance()
}

// unlockAndAdvance queues the next op if all it needs has arrived, and releases mu: before it queues, or the executor would
// be woken only to wait for mu.
func (w *walk) unlockAndAdvance() {
	queue := !w.queued && w.advance()
	w.mu.Unlock()
	if queue {
		w.executor.submit(w)
	}
}

// advance reports whether the next op can run, and then counts it as queued. The caller holds mu; no op is queued or runs.
func (w *walk) advance() bool {
	c := &w.cells[w.next]
	if !c.lane.active {
		return false
	}
	ok, err := c.lane.gather(c.Kind)
	if err != nil {
		c.lane.finish(c.lane.fault(c.Op, err))
		return false
	}
	if ok {
		w.queued, w.ready = true, trace.Now()
	}
	return ok
}

// run implements work: it computes the next op.
func (w *walk) run() {
	w.mu.Lock()
	c := &w.cells[w.next]
	l := c.lane
	if !l.active {
		w.mu.Unlock()
		return
	}
	p := l.claim(c.Op)
	since, ready := max(w.since, l.begun), w.ready
	w.mu.Unlock()

	start := trace.Now()
	l.emitWaits(c.Op, since, ready, start)
	err := l.compute(c, p, start)

	w.mu.Lock()
	w.queued = false
	if w.next++; w.next == len(w.cells) {
		w.next = 0
	}
	w.since = trace.Now()
	if err != nil {
		l.finish(l.fault(c.Op, err))
	} else if c.last {
		l.finish(nil)
	}
	w.unlockAndAdvance()
}

// drop implements work.
func (w *walk) drop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queued = false
	c := &w.cells[w.next]
	c.lane.finish(c.lane.fault(c.Op, err))
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
