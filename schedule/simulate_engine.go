package schedule

// engine is the discrete-event simulation. Its processes run what they have in order: one for each pipeline on each device, a row of
// the plan, and one for each pipeline on each stage, what ends a batch there (simulate_tail.go). A process whose next op has its
// message asks its device for a turn; the op's end puts its message on a link and wakes the process that waits for it.
//
// All that happens at one instant happens in a fixed order: ends, then arrivals, both in the order of processes, then
// devices choose what to run.
type engine struct {
	plan      Plan
	load      Load
	times     []float64  // [stage*kinds + kind]: of an op
	tails     [][]tailOp // per device: what ends a batch on its stages and takes time
	devices   []simDevice
	processes []process // rows: [pipeline*devices + device]; then, unless batches just end, tails: [rows + pipeline*stages + stage]
	endings   *endings
	links     links
	memory    memory
	queue     eventQueue
	touched   []int // devices that may have a choice to make at this instant

	ends  []float64 // [pipeline*batches + batch]
	spans [][]Span  // per process; nil if not recorded
}

// kinds is the number of kinds of op.
const kinds = len(kindLetters)

// process is one pipeline on one device: its row, or what ends its batches on one stage.
type process struct {
	pipeline, device int
	stage            int32 // whose batches it ends; -1 is a row
	waits            int   // the inbox whose message it needs, or one of those below

	next  int     // position in the row, or in the stage's steps
	batch int     // of those that it runs; of a tail: that it has ended so many
	free  float64 // when its last op ended
	ready float64 // when the op at next had all it needs
	start float64 // when it began to run
	runs  bool    // of a row: an op of its pipeline runs on its device
	done  bool
}

// What a process waits for that is no message.
const (
	forNothing = -1 - iota
	forTail    // a row: its next op's stage has not ended the batch before
	forRound   // a tail: other pipelines have not come to the averaging
	forRow     // a tail: its stage has work left in the batch
)

func newEngine(plan Plan, costs Costs, load Load) *engine {
	placement := plan.Placement()
	e := &engine{
		plan: plan, load: load, tails: tailsOf(plan, placement, costs),
		times: make([]float64, len(placement)*kinds), devices: newDevices(plan, costs, load),
		links:  newLinks(placement, costs, load.Pipelines),
		memory: newMemory(plan, placement, costs, load), ends: make([]float64, load.Pipelines*load.Batches),
	}
	e.endings = newEndings(plan, placement, load, e.tails)
	e.queue.unsorted = load.Pipelines == 1 && (e.endings == nil || len(placement) == len(plan))
	for p := range load.Pipelines {
		for d := range plan {
			e.processes = append(e.processes, process{pipeline: p, device: d, stage: -1})
		}
	}
	if e.endings != nil {
		for p := range load.Pipelines {
			for s, d := range placement {
				e.processes = append(e.processes, process{pipeline: p, device: d, stage: int32(s), waits: forRow}) //nolint:gosec // far fewer
			}
		}
	}
	for s := range placement {
		for kind := range kinds {
			e.times[s*kinds+kind] = costs.of(s, Kind(kind))
		}
	}
	if load.Record {
		e.spans = make([][]Span, e.rows())
		for l := range e.spans {
			e.spans[l] = make([]Span, e.spanOf(l%len(plan), load.Batches))
		}
	}
	return e
}

// rows is the number of processes that are rows of the plan. They stand before the others.
func (e *engine) rows() int { return e.load.Pipelines * len(e.plan) }

// row is the process that runs the device's row for the process's pipeline.
func (e *engine) row(v *process) *process { return &e.processes[v.pipeline*len(e.plan)+v.device] }

// spanOf is where the spans of a batch begin among those of a pipeline on device d.
func (e *engine) spanOf(d, batch int) int {
	spans := batch * len(e.plan[d])
	for _, tail := range e.tails[d] {
		switch {
		case !tail.averages:
			spans += batch
		case e.load.AverageEvery > 0:
			spans += batch / e.load.AverageEvery
		}
	}
	return spans
}

func (e *engine) run() {
	for l := range e.rows() {
		e.prepareRow(l)
	}
	e.choose(0)
	for !e.queue.empty() {
		next := e.queue.pop()
		switch {
		case next.ready:
			e.enterNow(int(next.index), next.time)
		case int(next.index) >= len(e.processes):
			e.endShared(int(next.index)-len(e.processes), next)
		default:
			e.end(int(next.index), next.time)
		}
		if len(e.touched) > 0 && e.queue.later(next.time) {
			e.choose(next.time)
		}
	}
}

// prepareRow finds out when the next op of a row is ready, and asks the device for a turn then. It does nothing while the op's
// message has not been sent, or its stage has not ended the batch before; that wakes the process.
func (e *engine) prepareRow(l int) {
	v := &e.processes[l]
	op := &e.plan[v.device][v.next]
	v.ready, v.waits = v.free, forNothing
	if e.endings != nil {
		tail := &e.processes[e.tail(v.pipeline, op.Stage)]
		if tail.batch < v.batch {
			v.waits = forTail
			return
		}
		v.ready = max(v.ready, tail.free)
	}
	if e.receive(v, e.links.input(v.pipeline, op)) {
		e.enter(l)
	}
}

// receive takes a process's message out of its box, -1 for an op that needs none. False: it has not been sent yet.
func (e *engine) receive(v *process, box int) bool {
	if box < 0 {
		return true
	}
	arrival, ok := e.links.take(box)
	if !ok {
		v.waits = box
		return false
	}
	v.ready = max(v.ready, arrival)
	return true
}

// enter asks the device for a turn when the process's op is ready.
func (e *engine) enter(l int) {
	v := &e.processes[l]
	switch {
	case e.queue.unsorted: // nobody else asks for the device
		e.start(l, v.ready)
	case v.ready > v.free:
		e.queue.push(event{time: v.ready, ready: true, index: int32(l)}) //nolint:gosec // bounded by Load.Validate
	default:
		e.ask(l)
	}
}

// enterNow is enter, at the instant at which the op is ready.
func (e *engine) enterNow(l int, now float64) {
	if v := &e.processes[l]; v.stage >= 0 && e.endings.steps[v.stage][v.next].kind == totals {
		e.endStep(l, now)
		return
	}
	e.ask(l)
}

// ask has a process wait for its device, at the instant at which its op is ready.
func (e *engine) ask(l int) {
	d := e.processes[l].device
	e.devices[d].waiting = append(e.devices[d].waiting, l)
	e.touched = append(e.touched, d)
}

// start runs the next op of a process from a time on.
func (e *engine) start(l int, now float64) {
	v := &e.processes[l]
	v.start = now
	e.row(v).runs = true
	if v.stage < 0 {
		e.memory.begin(v.device, v.next, now)
	}
	device := &e.devices[v.device]
	if device.running++; device.running == 1 {
		device.since = now
	}
	if device.shared != nil {
		device.shared.join(l, e.duration(v), now)
		return
	}
	e.queue.push(event{time: now + e.duration(v), index: int32(l)}) //nolint:gosec // bounded by Load.Validate
}

// duration is the time of the op at a process's position when it has the device for itself.
func (e *engine) duration(v *process) float64 {
	if v.stage >= 0 {
		return e.jittered(v, e.endings.steps[v.stage][v.next].time)
	}
	op := &e.plan[v.device][v.next]
	return e.jittered(v, e.times[op.Stage*kinds+int(op.Kind)])
}

// end completes the op that a process runs on its device.
func (e *engine) end(l int, now float64) {
	v := &e.processes[l]
	e.row(v).runs = false
	device := &e.devices[v.device]
	if device.running--; device.running == 0 {
		device.busy += now - device.since
	}
	if len(device.waiting) > 0 {
		e.touched = append(e.touched, v.device)
	}
	if v.stage >= 0 {
		e.endStep(l, now)
		return
	}
	e.memory.end(v.device, v.next, now)
	if e.spans != nil {
		e.spans[l][e.spanOf(v.device, v.batch)+v.next] = Span{Start: v.start, End: now}
	}
	row := e.plan[v.device]
	op := &row[v.next]
	batch, last := v.batch, e.endings != nil && e.endings.last[op.Stage] == v.next
	v.free = now
	if v.next++; v.next == len(row) {
		v.next = 0
		v.batch++
		v.done = v.batch == e.load.Batches
		e.endBatch(v.pipeline, batch, now)
	}
	e.send(v.pipeline, op, now)
	if last {
		e.beginTail(e.tail(v.pipeline, op.Stage), now)
	}
	if !v.done {
		e.prepareRow(l)
	}
}

// endBatch notes that a part of a batch ends; the last part ends it.
func (e *engine) endBatch(p, batch int, now float64) {
	end := &e.ends[p*e.load.Batches+batch]
	*end = max(*end, now)
}

// send puts the message of an op on its link and wakes the process that waits for it.
func (e *engine) send(p int, op *Op, now float64) {
	if box, stage := e.links.send(p, op, now); box >= 0 {
		e.wake(p, stage, box)
	}
}

// wake prepares the process of the stage's that waits for a message of the box.
func (e *engine) wake(p, stage, box int) {
	if row := p*len(e.plan) + e.links.placement[stage]; e.processes[row].waits == box {
		e.prepareRow(row)
		return
	}
	if e.endings != nil {
		if tail := e.tail(p, stage); e.processes[tail].waits == box {
			e.prepareStep(tail)
		}
	}
}
