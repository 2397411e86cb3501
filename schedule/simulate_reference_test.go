package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// reference is a simulator that is obviously right and slow: it looks at the whole state at every instant of a clock that
// ticks. All times are whole numbers, those of ops at least 1.
type reference struct {
	plan      Plan
	placement []int
	costs     Costs
	load      Load

	processes []referenceProcess   // [pipeline*devices + device], then [pipeline*stages + stage]
	sent      map[message]bool     // on its way, or taken
	arrived   map[message]bool     // there to be taken, or taken
	queues    map[[2]int][]message // per direction of a link: not yet on it
	flying    []flight
	peaks     []int64
	carrying  map[[2]int]float64 // per direction: time in which a message was put on it
	waited    map[[2]int]float64 // per direction: the longest time that a message queued for it
}

// referenceProcess is what one pipeline does on one device, a row of the plan, or to end its batches on one stage.
type referenceProcess struct {
	pipeline, device int
	stage            int  // whose batches it ends; -1 is a row
	row              []Op // of all batches, after each other; what ends a batch has one of the Micros below
	batch            []int
	next             int
	running          bool
	left             int // of the running op
	ready            int // first instant at which the next op could run, -1 before
	starts           []int
	ends             []int
}

// The Micros of what ends a batch.
const (
	stepMicro    = -1
	averageMicro = -2
	sumMicro     = -3 // no time, but a turn of the device
	totalMicro   = -4 // no time and no turn
)

// message is named by what it carries.
type message struct {
	pipeline, batch, boundary, micro int
	up                               bool
}

type flight struct {
	message
	link       [2]int
	queued     int
	begun      bool
	left, late int // of putting it on the link, of the latency after that
}

func newReference(plan Plan, costs Costs, load Load) *reference {
	r := &reference{
		plan: plan, placement: plan.Placement(), costs: costs, load: load, sent: map[message]bool{}, arrived: map[message]bool{},
		queues: map[[2]int][]message{}, peaks: make([]int64, len(plan)), carrying: map[[2]int]float64{},
		waited: map[[2]int]float64{},
	}
	for p := range load.Pipelines {
		for d, ops := range plan {
			process := referenceProcess{pipeline: p, device: d, stage: -1, ready: -1}
			for b := range load.Batches {
				process.add(b, ops...)
			}
			r.processes = append(r.processes, process)
		}
	}
	for p := range load.Pipelines {
		for s, d := range r.placement {
			process := referenceProcess{pipeline: p, device: d, stage: s, ready: -1}
			for b := range load.Batches {
				if load.ExchangeNorm {
					process.add(b, Op{Stage: s, Micro: sumMicro}, Op{Stage: s, Micro: totalMicro})
				}
				if plan.Updates() == 0 && costs.Update[s] > 0 {
					process.add(b, Op{Stage: s, Micro: stepMicro})
				}
				if load.AverageEvery > 0 && (b+1)%load.AverageEvery == 0 && (costs.Average[s] > 0 || load.AwaitRound) {
					process.add(b, Op{Stage: s, Micro: averageMicro})
				}
			}
			r.processes = append(r.processes, process)
		}
	}
	return r
}

func (l *referenceProcess) add(batch int, ops ...Op) {
	l.row = append(l.row, ops...)
	l.batch = append(l.batch, slices.Repeat([]int{batch}, len(ops))...)
}

// complete reports whether a process has ended all of a batch, of a stage.
func (l *referenceProcess) complete(batch, stage int) bool {
	for i := l.next; i < len(l.row); i++ {
		if l.batch[i] == batch && l.row[i].Stage == stage {
			return false
		}
	}
	return true
}

func (r *reference) rowOf(l *referenceProcess) *referenceProcess {
	return &r.processes[l.pipeline*len(r.plan)+l.device]
}

func (r *reference) tailOf(p, s int) *referenceProcess {
	return &r.processes[r.load.Pipelines*len(r.plan)+p*len(r.placement)+s]
}

// may reports whether the process's next op has all it needs.
func (r *reference) may(l *referenceProcess) bool {
	op, batch := l.row[l.next], l.batch[l.next]
	if m, needed := r.input(l); needed && !r.arrived[m] {
		return false
	}
	if l.stage < 0 {
		return batch == 0 || r.tailOf(l.pipeline, op.Stage).complete(batch-1, op.Stage)
	}
	if op.Micro == averageMicro && r.load.AwaitRound {
		for p := range r.load.Pipelines {
			if other := r.tailOf(p, op.Stage); other.next < l.next || !r.rowOf(other).complete(batch, op.Stage) {
				return false
			}
		}
	}
	return r.rowOf(l).complete(batch, op.Stage)
}

// input is the message that the process's next op needs.
func (r *reference) input(l *referenceProcess) (m message, needed bool) {
	op := l.row[l.next]
	m = message{pipeline: l.pipeline, batch: l.batch[l.next], micro: op.Micro}
	switch {
	case op.Micro == sumMicro && op.Stage > 0, op.Micro >= 0 && op.Kind == Forward && op.Stage > 0:
		m.boundary = op.Stage - 1
		return m, true
	case op.Stage+1 == len(r.placement):
	case op.Micro == totalMicro, op.Micro >= 0 && (op.Kind == Backward || op.Kind == BackwardInput):
		m.boundary, m.up = op.Stage, true
		return m, true
	}
	return m, false
}

func (r *reference) time(op Op) int {
	switch op.Micro {
	case stepMicro:
		return int(r.costs.Update[op.Stage])
	case averageMicro:
		return int(r.costs.Average[op.Stage])
	case sumMicro, totalMicro:
		return 0
	}
	return int(r.costs.of(op.Stage, op.Kind))
}

// end ends the process's op, whose message queues for its link.
func (r *reference) end(l *referenceProcess, now int) {
	op := l.row[l.next]
	m := message{pipeline: l.pipeline, batch: l.batch[l.next], micro: op.Micro, boundary: op.Stage}
	l.ends = append(l.ends, now)
	l.next, l.ready, l.running = l.next+1, -1, false
	to := -1
	switch {
	case op.Micro == sumMicro, op.Micro >= 0 && op.Kind == Forward:
		to = op.Stage + 1
	case op.Micro == totalMicro, op.Micro >= 0 && (op.Kind == Backward || op.Kind == BackwardInput):
		m.boundary, m.up = op.Stage-1, true
		to = op.Stage - 1
	}
	if to < 0 || to == len(r.placement) {
		return
	}
	transmit, late := 0, int(r.costs.Link[m.boundary])
	if bandwidth := r.costs.Bandwidth[m.boundary]; bandwidth > 0 {
		transmit = int(r.costs.MessageBytes[m.boundary]) / int(bandwidth)
		if op.Micro < 0 {
			transmit = 8 / int(bandwidth)
		}
	}
	link := [2]int{r.placement[op.Stage], r.placement[to]}
	if link[0] == link[1] || transmit == 0 && late == 0 {
		r.arrived[m] = true
		return
	}
	r.flying = append(r.flying, flight{message: m, link: link, queued: now, left: transmit, late: late})
}

// tick is one instant: ops end, messages move, devices choose, and time passes until the next instant. What takes no time ends at
// once, and what follows from it is of the same instant.
func (r *reference) tick(now int) (left bool) {
	for l := range r.processes {
		if process := &r.processes[l]; process.running {
			if process.left--; process.left == 0 {
				r.end(process, now)
			}
		}
	}
	r.deliver(now)
	for again := true; again; {
		r.takeTotals(now)
		for d := range r.plan {
			r.choose(d, now)
		}
		again = false
		for l := range r.processes {
			if process := &r.processes[l]; process.running && process.left == 0 {
				r.end(process, now)
				again = true
			}
		}
	}
	for d := range r.plan {
		r.peaks[d] = max(r.peaks[d], r.held(d))
	}
	for l := range r.processes {
		left = left || r.processes[l].next < len(r.processes[l].row)
	}
	return left
}

// takeTotals notes what is ready, and ends totals, the first first, until there are no more.
func (r *reference) takeTotals(now int) {
	for l := 0; l < len(r.processes); l++ {
		process := &r.processes[l]
		if process.next == len(process.row) || process.running || process.ready >= 0 || !r.may(process) {
			continue
		}
		process.ready = now
		if process.row[process.next].Micro == totalMicro {
			process.starts = append(process.starts, now)
			r.end(process, now)
			l = -1 // from the start
		}
	}
}

// deliver moves messages by what has passed since the instant before: one message at a time is put on a link.
func (r *reference) deliver(now int) {
	busy := map[[2]int]bool{}
	kept := r.flying[:0]
	for _, f := range r.flying {
		if f.left > 0 && f.queued < now && !busy[f.link] {
			busy[f.link] = true
			if !f.begun {
				f.begun = true
				r.waited[f.link] = max(r.waited[f.link], float64(now-1-f.queued))
			}
			f.left--
			r.carrying[f.link]++
			if f.left == 0 {
				f.queued = now // from here on it is late
			}
		} else if f.left == 0 && f.queued < now {
			f.late--
		}
		if f.left == 0 && f.late == 0 {
			r.arrived[f.message] = true
		} else {
			kept = append(kept, f)
		}
	}
	r.flying = kept
}

// choose has a free device run the op that has waited longest. A device of which an op uses half runs two at a time, of two
// pipelines.
func (r *reference) choose(d, now int) {
	for {
		running, best := 0, -1
		for l := range r.processes {
			process := &r.processes[l]
			if process.device != d {
				continue
			}
			if process.running {
				running++
			} else if process.ready >= 0 && !r.works(process.pipeline, d) && (best < 0 || process.ready < r.processes[best].ready) {
				best = l
			}
		}
		room := 1
		if r.costs.Utilisation != nil && r.costs.Utilisation[d] == 0.5 {
			room = 2
		}
		if best < 0 || running >= room {
			return
		}
		process := &r.processes[best]
		process.running, process.left, process.ready = true, r.time(process.row[process.next]), -1
		process.starts = append(process.starts, now)
	}
}

// works reports whether device d runs an op of a pipeline.
func (r *reference) works(p, d int) bool {
	return slices.ContainsFunc(r.processes, func(l referenceProcess) bool { return l.running && l.pipeline == p && l.device == d })
}

// held is what device d holds, found from how far each pipeline is.
func (r *reference) held(d int) int64 {
	bytes := int64(0)
	for p := range r.load.Pipelines {
		process := &r.processes[p*len(r.plan)+d]
		for s, at := range r.placement {
			if at == d {
				bytes += r.costs.WeightBytes[s] + r.costs.GradientBytes[s] + r.heldBy(process, s)
			}
		}
	}
	for s, at := range r.placement {
		if at == d {
			bytes += r.costs.CenterBytes[s]
		}
	}
	return bytes
}

// heldBy is what comes and goes on a stage.
func (r *reference) heldBy(process *referenceProcess, s int) int64 {
	begun := func(i int) bool { return i < process.next || i == process.next && process.running }
	bytes := int64(0)
	newest, reads, needed := 0, map[int]int{}, map[int]bool{}
	batch := process.batch[min(process.next, len(process.row)-1)]
	for i, op := range process.row {
		if op.Stage != s || op.Micro < 0 || process.batch[i] != batch {
			continue
		}
		ended := i < process.next
		switch op.Kind {
		case Forward:
			reads[op.Micro] = op.Version
			if begun(i) {
				bytes += r.costs.ActivationBytes[s]
			}
		case Backward:
			if ended {
				bytes -= r.costs.ActivationBytes[s]
			}
		case BackwardInput:
			if ended {
				bytes += r.costs.HalfBytes[s] - r.costs.ActivationBytes[s]
			}
		case BackwardWeight:
			if ended {
				bytes -= r.costs.HalfBytes[s]
			}
		case Update:
			if begun(i) {
				newest++
			}
			continue
		}
		if !ended {
			needed[reads[op.Micro]] = true
		}
	}
	for v := range newest {
		if needed[v] {
			bytes += r.costs.WeightBytes[s]
		}
	}
	return bytes
}

// span is when the work of an event ran.
func (r *reference) span(e Event) Span {
	process, op := r.processes[e.Pipeline*len(r.plan)+e.Device], e.Op
	if op.Micro < 0 {
		process, op = *r.tailOf(e.Pipeline, op.Stage), Op{Stage: op.Stage, Micro: stepMicro}
		if e.Op.Kind == Kind(averaging) {
			op.Micro = averageMicro
		}
	}
	for i := range process.row {
		if process.row[i] == op && process.batch[i] == e.Batch {
			return Span{float64(process.starts[i]), float64(process.ends[i])}
		}
	}
	return Span{}
}

// stepsEarly reports whether a stage ends its batch while its device's row still runs.
func (r *reference) stepsEarly() bool {
	for l := range r.processes {
		process := &r.processes[l]
		if process.stage < 0 || len(process.ends) == 0 {
			continue
		}
		if row := r.rowOf(process); process.ends[0] < row.ends[len(r.plan[process.device])-1] {
			return true
		}
	}
	return false
}

// TestSimulatorAgreesWithATickingReference to the bit: every op's start and end, and the peak of memory.
func TestSimulatorAgreesWithATickingReference(t *testing.T) {
	r := rand.New(rand.NewPCG(2025, 1))
	cases := map[string]int{}
	for range 1500 {
		plan := randomWork(r)
		costs := randomWholeCosts(r, plan.Stages(), len(plan))
		load := Load{
			Pipelines: 1 + r.IntN(2), Batches: 1 + r.IntN(3), AverageEvery: r.IntN(3), AwaitRound: r.IntN(3) == 0,
			ExchangeNorm: plan.Updates() == 0 && r.IntN(3) == 0, Record: true,
		}
		got, err := simulate(plan, costs, load)
		if err != nil {
			t.Fatalf("%v\n%v", plan, err)
		}
		want := newReference(plan, costs, load)
		now := 0
		for want.tick(now) {
			now++
		}
		if got.Makespan != float64(now) {
			t.Fatalf("%v\n%+v %+v: takes %v; want %d", plan, costs, load, got.Makespan, now)
		}
		for _, e := range got.Events {
			if span := want.span(e); e.Span != span {
				t.Fatalf("%v\n%+v %+v: %+v; want %v", plan, costs, load, e, span)
			}
		}
		for d, peak := range want.peaks {
			if got.Memory[d].Peak != peak {
				t.Fatalf("%v\n%+v %+v: device %d holds %d at its peak; want %d", plan, costs, load, d, got.Memory[d].Peak, peak)
			}
			if got.Memory[d].Reserved < peak || load.Pipelines == 1 && got.Memory[d].Reserved != peak {
				t.Fatalf("%v\n%+v %+v: device %d reserves %d; its peak is %d", plan, costs, load, d, got.Memory[d].Reserved, peak)
			}
		}
		for _, link := range got.Links {
			if carried := want.carrying[[2]int{link.From, link.To}]; !near(link.Busy*got.Makespan, carried) {
				t.Fatalf("%v\n%+v %+v: link %+v; carries for %v", plan, costs, load, link, carried)
			}
			if waited := want.waited[[2]int{link.From, link.To}]; link.Waited != waited {
				t.Fatalf("%v\n%+v %+v: link %+v; messages wait up to %v", plan, costs, load, link, waited)
			}
			if link.Waited > 0 {
				cases["a message waited"]++
			}
		}
		cases[fmt.Sprintf("pipelines %d, shared %v, updates %v", load.Pipelines, costs.Utilisation != nil, plan.Updates() > 0)]++
		if plan.Stages() > len(plan) {
			cases[fmt.Sprintf("several stages on a device, norm %v", load.ExchangeNorm)]++
			if want.stepsEarly() {
				cases["a stage ends its batch before others of its device"]++
			}
		}
		if load.AwaitRound && load.Pipelines > 1 && load.AverageEvery > 0 {
			cases["pipelines wait for each other"]++
		}
	}
	if len(cases) < 13 {
		t.Errorf("the random plans have only %v", cases)
	}
	t.Log(cases)
}
