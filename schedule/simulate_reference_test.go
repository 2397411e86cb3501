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

	lanes    []referenceLane      // [pipeline*devices + device]
	sent     map[message]bool     // on its way, or taken
	arrived  map[message]bool     // there to be taken, or taken
	queues   map[[2]int][]message // per direction of a link: not yet on it
	flying   []flight
	peaks    []int64
	carrying map[[2]int]float64 // per direction: time in which a message was put on it
}

type referenceLane struct {
	row    []Op // with what ends a batch as ops of Micro -1, all batches after each other
	batch  []int
	next   int
	left   int // of the running op; 0: none runs
	ready  int // first instant at which the next op could run, -1 before
	starts []int
	ends   []int
}

// message is named by what it carries.
type message struct {
	pipeline, batch, boundary, micro int
	up                               bool
}

type flight struct {
	message
	link       [2]int
	queued     int
	left, late int // of putting it on the link, of the latency after that
}

func newReference(plan Plan, costs Costs, load Load) *reference {
	r := &reference{
		plan: plan, placement: plan.Placement(), costs: costs, load: load, sent: map[message]bool{}, arrived: map[message]bool{},
		queues: map[[2]int][]message{}, peaks: make([]int64, len(plan)), carrying: map[[2]int]float64{},
	}
	for range load.Pipelines {
		for d, ops := range plan {
			lane := referenceLane{ready: -1}
			for b := range load.Batches {
				row := slices.Clone(ops)
				for s, at := range r.placement {
					if at == d && plan.Updates() == 0 && costs.Update[s] > 0 {
						row = append(row, Op{Kind: Update, Stage: s, Micro: -1})
					}
				}
				for s, at := range r.placement {
					if at == d && load.AverageEvery > 0 && (b+1)%load.AverageEvery == 0 && costs.Average[s] > 0 {
						row = append(row, Op{Kind: Update, Stage: s, Micro: -2})
					}
				}
				lane.row = append(lane.row, row...)
				lane.batch = append(lane.batch, slices.Repeat([]int{b}, len(row))...)
			}
			r.lanes = append(r.lanes, lane)
		}
	}
	return r
}

// input is the message that the lane's next op needs.
func (r *reference) input(p int, l *referenceLane) (m message, needed bool) {
	op := l.row[l.next]
	m = message{pipeline: p, batch: l.batch[l.next], micro: op.Micro}
	switch {
	case op.Kind == Forward && op.Stage > 0:
		m.boundary = op.Stage - 1
		return m, true
	case (op.Kind == Backward || op.Kind == BackwardInput) && op.Stage+1 < len(r.placement):
		m.boundary, m.up = op.Stage, true
		return m, true
	}
	return m, false
}

func (r *reference) time(op Op) int {
	switch op.Micro {
	case -1:
		return int(r.costs.Update[op.Stage])
	case -2:
		return int(r.costs.Average[op.Stage])
	}
	return int(r.costs.of(op.Stage, op.Kind))
}

// send has an op's message queue for its link.
func (r *reference) send(p, batch int, op Op, now int) {
	m := message{pipeline: p, batch: batch, micro: op.Micro, boundary: op.Stage}
	from := r.placement[op.Stage]
	var to int
	switch {
	case op.Kind == Forward && op.Stage+1 < len(r.placement):
		to = r.placement[op.Stage+1]
	case (op.Kind == Backward || op.Kind == BackwardInput) && op.Stage > 0:
		m.boundary, m.up = op.Stage-1, true
		to = r.placement[op.Stage-1]
	default:
		return
	}
	if from == to {
		r.arrived[m] = true
		return
	}
	transmit := 0
	if bandwidth := r.costs.Bandwidth[m.boundary]; bandwidth > 0 {
		transmit = int(r.costs.MessageBytes[m.boundary]) / int(bandwidth)
	}
	r.flying = append(r.flying, flight{message: m, link: [2]int{from, to}, queued: now, left: transmit, late: int(r.costs.Link[m.boundary])})
}

// tick is one instant: ops end, messages move, devices choose, and time passes until the next instant.
func (r *reference) tick(now int) (left bool) {
	devices := len(r.plan)
	for l := range r.lanes {
		lane := &r.lanes[l]
		if lane.left > 0 {
			if lane.left--; lane.left == 0 {
				lane.ends = append(lane.ends, now)
				lane.next, lane.ready = lane.next+1, -1
				r.send(l/devices, lane.batch[lane.next-1], lane.row[lane.next-1], now)
			}
		}
	}
	r.deliver(now)
	for l := range r.lanes {
		lane := &r.lanes[l]
		if lane.next < len(lane.row) && lane.left == 0 && lane.ready < 0 {
			if m, needed := r.input(l/devices, lane); !needed || r.arrived[m] {
				lane.ready = now
			}
		}
		left = left || lane.next < len(lane.row)
	}
	for d := range devices {
		r.choose(d, now)
		r.peaks[d] = max(r.peaks[d], r.held(d))
	}
	return left
}

// deliver moves messages by what has passed since the instant before: one message at a time is put on a link.
func (r *reference) deliver(now int) {
	busy := map[[2]int]bool{}
	kept := r.flying[:0]
	for _, f := range r.flying {
		if f.left > 0 && f.queued < now && !busy[f.link] {
			busy[f.link] = true
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

// choose has a free device run the op that has waited longest. A device of which an op uses half runs two at a time.
func (r *reference) choose(d, now int) {
	devices := len(r.plan)
	for {
		running, best := 0, -1
		for p := range r.load.Pipelines {
			lane := &r.lanes[p*devices+d]
			if lane.left > 0 {
				running++
			} else if lane.ready >= 0 && (best < 0 || lane.ready < r.lanes[best].ready) {
				best = p*devices + d
			}
		}
		room := 1
		if r.costs.Utilisation != nil && r.costs.Utilisation[d] == 0.5 {
			room = 2
		}
		if best < 0 || running >= room {
			return
		}
		lane := &r.lanes[best]
		lane.left, lane.ready = r.time(lane.row[lane.next]), -1
		lane.starts = append(lane.starts, now)
	}
}

// held is what device d holds, found from how far each pipeline is.
func (r *reference) held(d int) int64 {
	bytes := int64(0)
	for p := range r.load.Pipelines {
		lane := &r.lanes[p*len(r.plan)+d]
		for s, at := range r.placement {
			if at == d {
				bytes += r.costs.WeightBytes[s] + r.costs.GradientBytes[s] + r.heldBy(lane, s)
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
func (r *reference) heldBy(lane *referenceLane, s int) int64 {
	begun := func(i int) bool { return i < lane.next || i == lane.next && lane.left > 0 }
	bytes := int64(0)
	newest, reads, needed := 0, map[int]int{}, map[int]bool{}
	batch := lane.batch[min(lane.next, len(lane.row)-1)]
	for i, op := range lane.row {
		if op.Stage != s || op.Micro < 0 || lane.batch[i] != batch {
			continue
		}
		ended := i < lane.next
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

// randomWork is a plan that cannot deadlock: it lists ops in an order in which they could run one after the other. Stages lie
// on devices at random; micro-batches are split at random; updates, if there are any, come after random micro-batches.
func randomWork(r *rand.Rand) Plan {
	stages, micros := 1+r.IntN(6), 1+r.IntN(5)
	devices := 1 + r.IntN(stages)
	placement := make([]int, stages)
	for s := range placement {
		placement[s] = s % devices
	}
	r.Shuffle(stages, func(i, j int) { placement[i], placement[j] = placement[j], placement[i] })
	updates := make([]bool, micros) // after which micro-batches
	if r.IntN(3) == 0 {
		for m := range updates {
			updates[m] = m == micros-1 || r.IntN(2) == 0
		}
	}
	plan := make(Plan, devices)
	forwards, backwards, steps := make([]int, stages), make([]int, stages), make([]int, stages)
	weights := make([][]int, stages) // micro-batches whose weight half waits
	done := make([][]bool, stages)   // per stage and micro-batch: its backward is complete
	for s := range done {
		done[s] = make([]bool, micros)
	}
	for left := stages; left > 0; {
		s := r.IntN(stages)
		add := func(kind Kind, m, version int) {
			plan[placement[s]] = append(plan[placement[s]], Op{Kind: kind, Stage: s, Micro: m, Version: version})
		}
		version := 0
		for _, u := range updates[:steps[s]] {
			if u {
				version++
			}
		}
		switch step := steps[s]; {
		case step < micros && done[s][step]: // every micro-batch before is complete: an update may follow
			if updates[step] {
				add(Update, step, 0)
			}
			if steps[s]++; steps[s] == micros {
				left--
			}
		case len(weights[s]) > 0 && r.IntN(3) == 0:
			add(BackwardWeight, weights[s][0], 0)
			done[s][weights[s][0]] = true
			weights[s] = weights[s][1:]
		case forwards[s] < micros && (s == 0 || forwards[s-1] > forwards[s]) && r.IntN(2) == 0:
			add(Forward, forwards[s], max(0, version-r.IntN(2)))
			forwards[s]++
		case backwards[s] < forwards[s] && (s == stages-1 || backwards[s+1] > backwards[s]):
			if m := backwards[s]; r.IntN(2) == 0 {
				add(BackwardInput, m, 0)
				weights[s] = append(weights[s], m)
			} else {
				add(Backward, m, 0)
				done[s][m] = true
			}
			backwards[s]++
		}
	}
	return plan
}

func randomWholeCosts(r *rand.Rand, stages, devices int) Costs {
	times := func(least int) []float64 {
		values := make([]float64, stages)
		for i := range values {
			values[i] = float64(least + r.IntN(6))
		}
		return values
	}
	bytes := func() []int64 {
		values := make([]int64, stages)
		for i := range values {
			values[i] = int64(r.IntN(20))
		}
		return values
	}
	c := Costs{
		Forward: times(1), Backward: times(1), BackwardInput: times(1), BackwardWeight: times(1), Update: times(1), Average: times(0),
		Link: times(0)[1:], Bandwidth: make([]float64, stages-1), MessageBytes: make([]int64, stages-1),
		ActivationBytes: bytes(), HalfBytes: bytes(), WeightBytes: bytes(), GradientBytes: bytes(), CenterBytes: bytes(),
	}
	for b := range c.Bandwidth {
		c.Bandwidth[b] = float64(r.IntN(3)) // 0: without limit
		c.MessageBytes[b] = int64(2 * r.IntN(5))
	}
	if r.IntN(3) == 0 {
		c.Utilisation = repeat(0.5, devices)
	}
	return c
}

// TestSimulatorAgreesWithATickingReference to the bit: every op's start and end, and the peak of memory.
func TestSimulatorAgreesWithATickingReference(t *testing.T) {
	r := rand.New(rand.NewPCG(2025, 1))
	cases := map[string]int{}
	for range 1500 {
		plan := randomWork(r)
		costs := randomWholeCosts(r, plan.Stages(), len(plan))
		load := Load{Pipelines: 1 + r.IntN(2), Batches: 1 + r.IntN(3), AverageEvery: r.IntN(3), Record: true}
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
		for l, lane := range want.lanes {
			for i := range lane.row {
				if span := (Span{float64(lane.starts[i]), float64(lane.ends[i])}); got.Spans[l][i] != span {
					t.Fatalf("%v\n%+v %+v: lane %d runs %v at %v; want %v", plan, costs, load, l, lane.row[i], got.Spans[l][i], span)
				}
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
			if link.Waited > 0 {
				cases["a message waited"]++
			}
		}
		cases[fmt.Sprintf("pipelines %d, shared %v, updates %v", load.Pipelines, costs.Utilisation != nil, plan.Updates() > 0)]++
		if plan.Stages() > len(plan) {
			cases["several stages on a device"]++
		}
	}
	if len(cases) < 10 {
		t.Errorf("the random plans have only %v", cases)
	}
	t.Log(cases)
}
