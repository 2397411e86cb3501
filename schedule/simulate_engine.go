package schedule

// engine is the discrete-event simulation. Its lanes, one for each pipeline on each device, run their rows in order. A lane
// whose next op has its message asks its device for a turn; the op's end puts its message on a link and wakes
// the lane that waits for it.
//
// All that happens at one instant happens in a fixed order: ends, then arrivals, both in the order of lanes, then
// devices choose what to run.
type engine struct {
	plan    Plan
	load    Load
	times   []float64  // [stage*kinds + kind]: of an op
	tails   [][]tailOp // per device: what follows its row
	devices []simDevice
	lanes   []lane // [pipeline*devices + device]
	links   links
	memory  memory
	agenda  agenda
	touched []int // devices that may have a choice to make at this instant

	ends  []float64 // [pipeline*batches + batch]
	spans [][]Span  // per lane; nil if not recorded
}

// kinds is the number of kinds of op.
const kinds = len(kindLetters)

// lane is one pipeline on one device.
type lane struct {
	next  int     // position in the row, and in the tail after it
	batch int     // of those that it runs
	steps int     // of the row and of this batch's tail
	waits int     // the inbox whose message it needs, -1 for none
	free  float64 // when its last op ended
	ready float64 // when the op at next had all it needs
	start float64 // when it began to run
	done  bool
}

// tailOp is work at the end of a batch.
type tailOp struct {
	stage    int
	time     float64
	averages bool // it is left out in the batches between averagings
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

func newEngine(plan Plan, costs Costs, load Load) *engine {
	placement := plan.Placement()
	e := &engine{
		plan: plan, load: load, tails: tailsOf(plan, placement, costs),
		times: make([]float64, len(placement)*kinds), devices: newDevices(plan, costs, load),
		lanes: make([]lane, load.Pipelines*len(plan)), links: newLinks(placement, costs, load.Pipelines),
		memory: newMemory(plan, placement, costs, load), ends: make([]float64, load.Pipelines*load.Batches),
		agenda: agenda{unsorted: load.Pipelines == 1},
	}
	for s := range placement {
		for kind := range kinds {
			e.times[s*kinds+kind] = costs.of(s, Kind(kind))
		}
	}
	if load.Record {
		e.spans = make([][]Span, len(e.lanes))
		for l := range e.spans {
			d := l % len(plan)
			e.spans[l] = make([]Span, 0, load.Batches*(len(plan[d])+len(e.tails[d])))
		}
	}
	return e
}

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

func (e *engine) run() {
	for l := range e.lanes {
		e.begin(l)
	}
	e.choose(0)
	for !e.agenda.empty() {
		next := e.agenda.pop()
		switch {
		case next.ready:
			e.ask(int(next.subject))
		case e.devices[0].shared != nil && int(next.subject) >= len(e.lanes):
			e.endShared(int(next.subject)-len(e.lanes), next)
		default:
			e.end(int(next.subject), next.time)
		}
		if len(e.touched) > 0 && e.agenda.later(next.time) {
			e.choose(next.time)
		}
	}
}

// begin starts the next batch of a lane.
func (e *engine) begin(l int) {
	v := &e.lanes[l]
	d := l % len(e.plan)
	v.next, v.steps = 0, len(e.plan[d])+len(tailOf(e.tails[d], v.batch, e.load.AverageEvery))
	e.prepare(l)
}

// prepare finds out when the next op of a lane is ready, and asks the device for a turn then. It does nothing while the op's
// message has not been sent; that wakes the lane.
func (e *engine) prepare(l int) {
	v := &e.lanes[l]
	p, d := l/len(e.plan), l%len(e.plan)
	v.ready, v.waits = v.free, -1
	if row := e.plan[d]; v.next < len(row) {
		if box := e.links.input(p, &row[v.next]); box >= 0 {
			arrival, ok := e.links.take(box)
			if !ok {
				v.waits = box
				return
			}
			v.ready = max(v.ready, arrival)
		}
	}
	switch {
	case e.load.Pipelines == 1: // nobody else asks for the device
		e.start(l, v.ready)
	case v.ready > v.free:
		e.agenda.push(happening{time: v.ready, ready: true, subject: int32(l)})
	default:
		e.ask(l)
	}
}

// ask has a lane wait for its device, at the instant at which its op is ready.
func (e *engine) ask(l int) {
	d := l % len(e.plan)
	e.devices[d].waiting = append(e.devices[d].waiting, l)
	e.touched = append(e.touched, d)
}

// start runs the next op of a lane from a time on.
func (e *engine) start(l int, now float64) {
	v := &e.lanes[l]
	d := l % len(e.plan)
	v.start = now
	e.memory.begin(d, v.next, now)
	device := &e.devices[d]
	if device.running++; device.running == 1 {
		device.since = now
	}
	if device.shared != nil {
		device.shared.join(l, e.duration(d, v), now)
		return
	}
	e.agenda.push(happening{time: now + e.duration(d, v), subject: int32(l)})
}

// duration is the time of the op at a lane's position when it has the device for itself.
func (e *engine) duration(d int, v *lane) float64 {
	row := e.plan[d]
	if v.next < len(row) {
		op := &row[v.next]
		return e.times[op.Stage*kinds+int(op.Kind)]
	}
	return e.tails[d][v.next-len(row)].time
}

// end completes the op that a lane runs.
func (e *engine) end(l int, now float64) {
	v := &e.lanes[l]
	p, d := l/len(e.plan), l%len(e.plan)
	device := &e.devices[d]
	if device.running--; device.running == 0 {
		device.busy += now - device.since
	}
	e.memory.end(d, v.next, now)
	if e.spans != nil {
		e.spans[l] = append(e.spans[l], Span{Start: v.start, End: now})
	}
	if len(device.waiting) > 0 {
		e.touched = append(e.touched, d)
	}
	row, at := e.plan[d], v.next
	v.free = now
	v.next++
	if v.next == v.steps {
		e.ends[p*e.load.Batches+v.batch] = max(e.ends[p*e.load.Batches+v.batch], now)
		v.batch++
	}
	if at < len(row) {
		e.send(p, &row[at], now)
	}
	switch {
	case v.next < v.steps:
		e.prepare(l)
	case v.batch < e.load.Batches:
		e.begin(l)
	default:
		v.done = true
	}
}

// send puts the message of an op on its link and wakes the lane that waits for it.
func (e *engine) send(p int, op *Op, now float64) {
	box, device := e.links.send(p, op, now)
	if box < 0 {
		return
	}
	if to := p*len(e.plan) + device; e.lanes[to].waits == box && !e.lanes[to].done {
		e.prepare(to)
	}
}
