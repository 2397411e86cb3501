package schedule

// engine is the discrete-event simulation. Its processes run what they have in order: a row for each pipeline on each device, which
// is that of the plan, and an ending for each pipeline on each stage, what ends a batch there. As in package pipeline, a stage ends its
// batch when its own last op has ended, while its device goes on with other stages; its next batch waits for that. A process whose
// next op has its message waits for its device; the end of the op puts its message on a link and wakes the process that waits
// for it.
//
// Events of one instant have a fixed order: ends, then arrivals, both in the order of processes; then devices choose what to run.
type engine struct {
	plan      Plan
	load      Load
	placement []int
	works     []work   // [stage*works + kind]
	endings   [][]Kind // per stage: the work that ends a batch, averaging last; nil where no stage has any
	last      []int    // per stage: position of its last op in the row
	gathered  []int    // per stage: pipelines that wait to average
	devices   []simDevice
	processes []process // rows: [pipeline*devices + device]; then, if there are endings: [rows + pipeline*stages + stage]
	boxes     []inbox   // [(pipeline*stages + stage)*ways + way]
	wires     []wire
	memory    memory
	queue     eventQueue
	ran       int   // ops of the plan
	touched   []int // devices that may have a choice to make at this instant

	ends   []float64 // [pipeline*batches + batch]
	events []Event   // if recorded
}

// kinds is the number of kinds of op.
const kinds = len(kindLetters)

// Work that ends a batch on a stage, other than Update, numbered after the kinds. No plan has it.
const (
	averaging = kinds + iota // with the center
	addNorm                  // adds its part to the square of the gradient's norm that comes down, and sends it on; occupies the device
	takeNorm                 // takes the square of the whole norm, and sends it up; does not occupy the device
	works                    // the number of all
)

// work is what an op of a stage and kind takes, and its messages.
type work struct {
	time          float64 // when it has the device for itself
	input, output int     // of pipeline 0: the box that it takes a message from, and the one that it sends to; -1 for none
	to            int     // the stage that takes what it sends
	wire          int     // that carries it; -1 inside of a device
	transmit      float64 // how long it occupies the wire
	latency       float64 // until it arrives after that
	bytes         int64   // of the message
	begin, end    int64   // what the device holds more of when the op begins, and when it ends
}

// process is the row of one pipeline on one device, or what ends its batches on one stage.
type process struct {
	pipeline, device int
	stage            int // whose batches it ends; -1 is a row
	waits            int // the box whose message it needs, or one of those below

	next  int     // position in the row, or in the ending
	batch int     // of those that it runs; of an ending: that it has ended so many
	free  float64 // when its last op ended
	ready float64 // when the op at next had all it needs
	start float64 // when it began to run
	runs  bool    // of a row: an op of its pipeline runs on its device
	done  bool
}

// What a process waits for that is no message.
const (
	forNothing = -1 - iota
	forEnding  // a row: its next op's stage has not ended the batch before
	forRound   // an ending: other pipelines have not come to the averaging
	forRow     // an ending: its stage has work left in the batch
)

func newEngine(plan Plan, costs Costs, load Load) *engine {
	placement := plan.Placement()
	e := &engine{
		plan: plan, load: load, placement: placement, works: make([]work, len(placement)*works), last: make([]int, len(placement)),
		gathered: make([]int, len(placement)), devices: newDevices(plan, costs, load),
		boxes: make([]inbox, ways*len(placement)*load.Pipelines), ends: make([]float64, load.Pipelines*load.Batches),
	}
	for _, row := range plan {
		for i := range row {
			e.last[row[i].Stage] = i
		}
	}
	e.price(costs)
	e.addEndings()
	e.memory = newMemory(e, costs)
	for p := range load.Pipelines {
		for d := range plan {
			e.processes = append(e.processes, process{pipeline: p, device: d, stage: -1})
		}
	}
	if e.endings != nil {
		for p := range load.Pipelines {
			for s, d := range placement {
				e.processes = append(e.processes, process{pipeline: p, device: d, stage: s, waits: forRow})
			}
		}
	}
	e.queue.unsorted = load.Pipelines == 1 && load.Shares == nil && (e.endings == nil || len(placement) == len(plan))
	return e
}

// addEndings lists what ends the batches of each stage: the exchange of the norm, the optimizer step unless the plan takes it, averaging.
func (e *engine) addEndings() {
	endings, some := make([][]Kind, len(e.placement)), false
	updates := e.plan.Updates() > 0
	for s := range endings {
		if e.load.ExchangeNorm {
			endings[s] = append(endings[s], Kind(addNorm), Kind(takeNorm))
		}
		if !updates && e.work(s, Update).time > 0 {
			endings[s] = append(endings[s], Update)
		}
		if e.load.AverageEvery > 0 && (e.work(s, Kind(averaging)).time > 0 || e.load.AwaitRound) {
			endings[s] = append(endings[s], Kind(averaging))
		}
		some = some || len(endings[s]) > 0
	}
	if some {
		e.endings = endings
	}
}

func (e *engine) work(stage int, kind Kind) *work { return &e.works[stage*works+int(kind)] }

// rows is the number of processes that are rows of the plan. They stand before the others.
func (e *engine) rows() int { return e.load.Pipelines * len(e.plan) }

// row is the process that runs the device's row for the process's pipeline.
func (e *engine) row(v *process) *process { return &e.processes[v.pipeline*len(e.plan)+v.device] }

// ending is the process that ends the batches of a pipeline on a stage.
func (e *engine) ending(p, stage int) int { return e.rows() + p*len(e.placement) + stage }

// timeOf is the device whose time a device takes.
func (e *engine) timeOf(d int) int {
	if e.load.Shares == nil {
		return d
	}
	return e.load.Shares[d]
}

// device is that device.
func (e *engine) device(d int) *simDevice { return &e.devices[e.timeOf(d)] }

// op is what a process runs next.
func (e *engine) op(v *process) (stage int, kind Kind) {
	if v.stage >= 0 {
		return v.stage, e.endings[v.stage][v.next]
	}
	op := &e.plan[v.device][v.next]
	return op.Stage, op.Kind
}

// proceedEvery is how many ops run between two calls of Load.Proceed: a few milliseconds.
const proceedEvery = 1 << 15

func (e *engine) run() error {
	for l := range e.rows() {
		e.prepare(l)
	}
	e.choose(0)
	all := e.plan.Ops() * e.load.Pipelines * e.load.Batches
	for at := proceedEvery; !e.queue.empty(); {
		if e.ran >= at && e.load.Proceed != nil {
			at = e.ran + proceedEvery
			if err := e.load.Proceed(e.ran, all); err != nil {
				return err
			}
		}
		next := e.queue.pop()
		l := int(next.index)
		switch {
		case l >= len(e.processes):
			e.endShared(l-len(e.processes), next)
		case next.ready && !e.offDevice(l):
			e.ask(l)
		default:
			e.end(l, next.time)
		}
		if len(e.touched) > 0 && e.queue.later(next.time) {
			e.choose(next.time)
		}
	}
	return nil
}

// offDevice reports whether the next op of a process does not occupy its device.
func (e *engine) offDevice(l int) bool {
	v := &e.processes[l]
	return v.stage >= 0 && e.endings[v.stage][v.next] == Kind(takeNorm)
}

// prepare finds out when the next op of a process is ready, and has it wait for the device from then on. It does nothing while the op's
// message has not been sent, or its stage has not ended the batch before; that wakes the process.
func (e *engine) prepare(l int) {
	v := &e.processes[l]
	if v.stage >= 0 && e.ended(v) {
		e.endEnding(v)
		return
	}
	v.ready, v.waits = v.free, forNothing
	stage, kind := e.op(v)
	if v.stage < 0 && e.endings != nil {
		before := &e.processes[e.ending(v.pipeline, stage)]
		if before.batch < v.batch {
			v.waits = forEnding
			return
		}
		v.ready = max(v.ready, before.free)
	}
	if box := e.work(stage, kind).input; box >= 0 {
		box = e.box(v.pipeline, box)
		arrival, sent := e.boxes[box].take()
		if !sent {
			v.waits = box
			return
		}
		v.ready = max(v.ready, arrival)
	}
	if kind == Kind(averaging) && e.load.AwaitRound {
		e.gather(v)
		return
	}
	e.enter(l)
}

// ended reports whether a stage has done all that ends the batch at hand, of which averaging is a part in every AverageEvery-th.
func (e *engine) ended(v *process) bool {
	all := e.endings[v.stage]
	return v.next == len(all) || all[v.next] == Kind(averaging) && (v.batch+1)%e.load.AverageEvery != 0
}

// gather has a stage average in all pipelines once it has come to that in all of them.
func (e *engine) gather(v *process) {
	v.waits = forRound
	if e.gathered[v.stage]++; e.gathered[v.stage] < e.load.Pipelines {
		return
	}
	e.gathered[v.stage] = 0
	for p := range e.load.Pipelines {
		other := e.ending(p, v.stage)
		e.processes[other].ready, e.processes[other].waits = v.free, forNothing
		e.enter(other)
	}
}

// enter has a process wait for its device from when its op is ready.
func (e *engine) enter(l int) {
	v := &e.processes[l]
	off := e.offDevice(l)
	switch {
	case e.queue.unsorted && off:
		e.end(l, v.ready)
	case e.queue.unsorted: // nobody else asks for the device
		e.start(l, v.ready)
	case off || v.ready > v.free:
		e.queue.push(event{time: v.ready, ready: true, index: int32(l)}) //nolint:gosec // bounded by Load.Validate
	default:
		e.ask(l)
	}
}

// ask has a process wait for its device, at the instant at which its op is ready.
func (e *engine) ask(l int) {
	d := e.timeOf(e.processes[l].device)
	e.devices[d].waiting = append(e.devices[d].waiting, l)
	e.touched = append(e.touched, d)
}

// start runs the next op of a process from a time on.
func (e *engine) start(l int, now float64) {
	v := &e.processes[l]
	v.start = now
	e.row(v).runs = true
	stage, kind := e.op(v)
	w := e.work(stage, kind)
	if v.stage < 0 {
		e.memory.change(v.device, e.memory.atBegin(v.device, v.next, w), now)
	}
	device := e.device(v.device)
	if device.running++; device.running == 1 {
		device.since = now
	}
	time := e.jittered(v, w.time)
	if device.shared != nil {
		device.shared.join(l, time, now)
		return
	}
	e.queue.push(event{time: now + time, index: int32(l)}) //nolint:gosec // bounded by Load.Validate
}

// end completes the op that a process runs.
func (e *engine) end(l int, now float64) {
	v := &e.processes[l]
	if !e.offDevice(l) {
		e.leave(v, now)
	}
	stage, kind := e.op(v)
	w := e.work(stage, kind)
	e.record(v, stage, kind, now)
	at, batch := v.next, v.batch
	v.free = now
	v.next++
	if v.stage < 0 {
		e.ran++
		e.memory.change(v.device, e.memory.atEnd(v.device, at, w), now)
		if v.next == len(e.plan[v.device]) {
			v.next = 0
			v.batch++
			v.done = v.batch == e.load.Batches
			e.endBatch(v.pipeline, batch, now)
		}
	}
	if w.output >= 0 {
		e.send(v.pipeline, w, now)
	}
	if v.stage < 0 && e.endings != nil && e.last[stage] == at {
		ending := e.ending(v.pipeline, stage)
		e.processes[ending].next, e.processes[ending].free = 0, now
		e.prepare(ending)
	}
	if !v.done {
		e.prepare(l)
	}
}

// leave frees the device of a process's op.
func (e *engine) leave(v *process, now float64) {
	e.row(v).runs = false
	device := e.device(v.device)
	if device.running--; device.running == 0 {
		device.busy += now - device.since
	}
	if len(device.waiting) > 0 {
		e.touched = append(e.touched, e.timeOf(v.device))
	}
}

// record notes what has run: of what ends a batch the optimizer step and averaging, where they take time.
func (e *engine) record(v *process, stage int, kind Kind, now float64) {
	if !e.load.Record {
		return
	}
	op := Op{Kind: kind, Stage: stage, Micro: -1}
	switch {
	case v.stage < 0:
		op = e.plan[v.device][v.next]
	case kind > Kind(averaging) || e.work(stage, kind).time == 0:
		return
	}
	e.events = append(e.events, Event{
		Device: v.device, Pipeline: v.pipeline, Batch: v.batch, Op: op, Span: Span{v.start, now},
	})
}

// endBatch notes that a part of a batch ends; the last part ends it.
func (e *engine) endBatch(p, batch int, now float64) {
	end := &e.ends[p*e.load.Batches+batch]
	*end = max(*end, now)
}

// endEnding ends a batch of a stage, which its row may wait for.
func (e *engine) endEnding(v *process) {
	e.endBatch(v.pipeline, v.batch, v.free)
	v.batch++
	v.done, v.waits = v.batch == e.load.Batches, forRow
	row := e.row(v)
	if row.waits == forEnding && e.plan[v.device][row.next].Stage == v.stage {
		e.prepare(v.pipeline*len(e.plan) + v.device)
	}
}

// jittered is a time of the process's next op, up to Load.Jitter shorter or longer than the time given: evenly so, by a hash of which
// op it is. Two simulations of one load jitter alike.
func (e *engine) jittered(v *process, time float64) float64 {
	if e.load.Jitter == 0 {
		return time
	}
	h := uint64(0)
	for _, part := range [...]int{v.pipeline, v.device, v.stage, v.batch, v.next} {
		h = mix(h ^ uint64(part)) //nolint:gosec // any bits do
	}
	even := float64(h>>11)/(1<<52) - 1 // in [-1, 1)
	return time * (1 + e.load.Jitter*even)
}

// mix is a bijection in which every bit of the argument changes each bit of the result with a chance of one half: the finalizer
// of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
func mix(h uint64) uint64 {
	h += 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
