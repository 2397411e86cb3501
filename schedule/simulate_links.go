package schedule

// wire is one direction of the link between two devices.
type wire struct {
	LinkLoad
	free float64 // when the last message is on it
}

// inbox holds the times at which messages over a boundary arrive, in the order of sending, as Check has proved that they are
// taken. It is empty at the end of each batch of its receiver, so it never has more than those of a batch.
type inbox struct {
	times []float64
	taken int
}

func (b *inbox) put(time float64) {
	if b.taken == len(b.times) {
		b.times, b.taken = b.times[:0], 0
	}
	b.times = append(b.times, time)
}

// take removes the first message and returns when it arrives; false if none has been sent.
func (b *inbox) take() (arrival float64, sent bool) {
	if b.taken == len(b.times) {
		return 0, false
	}
	b.taken++
	return b.times[b.taken-1], true
}

// normBytes is a message with a norm.
const normBytes = 8

// price finds what all work takes, and which boxes and wires its messages use. Each pipeline has a box for each stage and way that
// messages come.
func (e *engine) price(costs Costs) {
	wires := make(map[[2]int]int) // by the devices at their ends
	for s := range e.placement {
		activations, halves := at(costs.ActivationBytes, s), at(costs.ActivationBytes, s)
		if costs.HalfBytes != nil {
			halves = costs.HalfBytes[s]
		}
		for kind := range works {
			w := e.work(s, Kind(kind))
			switch {
			case kind < kinds:
				w.time = costs.of(s, Kind(kind))
			case kind == averaging:
				w.time = at(costs.Average, s)
			}
			e.connect(w, s, kind, costs, wires)
		}
		e.work(s, Forward).begin = activations
		e.work(s, Backward).end = -activations
		e.work(s, BackwardInput).end = halves - activations
		e.work(s, BackwardWeight).end = -halves
	}
}

// connect finds the boxes that an op of a stage takes its message from and sends one to, the wire, and how long that takes.
func (e *engine) connect(w *work, s, kind int, costs Costs, wires map[[2]int]int) {
	way, from, to := route(Kind(kind), s, len(e.placement))
	w.input, w.output = -1, -1
	if from >= 0 {
		w.input = ways*s + way
	}
	if to < 0 {
		return
	}
	w.output, w.to = ways*to+way, to
	boundary := min(s, to)
	w.latency, w.transmit, w.bytes = at(costs.Link, boundary), costs.transmit(boundary), at(costs.MessageBytes, boundary)
	if kind == addNorm || kind == takeNorm {
		w.transmit, w.bytes = 0, normBytes
		if bandwidth := at(costs.Bandwidth, boundary); bandwidth > 0 {
			w.transmit = normBytes / bandwidth
		}
	}
	ends := [2]int{e.placement[s], e.placement[to]}
	if ends[0] == ends[1] {
		w.wire = -1
		return
	}
	i, known := wires[ends]
	if !known {
		i = len(e.wires)
		wires[ends] = i
		e.wires = append(e.wires, wire{LinkLoad: LinkLoad{From: ends[0], To: ends[1]}})
	}
	w.wire = i
}

// box is the one of a pipeline that is such a one of pipeline 0.
func (e *engine) box(pipeline, box int) int { return ways*pipeline*len(e.placement) + box }

// send puts the message of an op that has ended on its way and wakes the process that waits for it.
func (e *engine) send(p int, w *work, now float64) {
	box := e.box(p, w.output)
	arrival := now
	if w.wire >= 0 {
		arrival = e.wires[w.wire].carry(now, w.transmit, w.bytes) + w.latency
	}
	e.boxes[box].put(arrival)
	if row := p*len(e.plan) + e.placement[w.to]; e.processes[row].waits == box {
		e.prepare(row)
	} else if e.endings != nil {
		if ending := e.ending(p, w.to); e.processes[ending].waits == box {
			e.prepare(ending)
		}
	}
}

// carry puts a message on the wire, after those that are being put on it, and returns when all of it is.
func (w *wire) carry(now, transmit float64, bytes int64) float64 {
	w.Messages++
	w.Bytes += bytes
	if transmit == 0 {
		return now
	}
	start := max(now, w.free)
	w.Waited = max(w.Waited, start-now)
	w.Busy += transmit
	w.free = start + transmit
	return w.free
}
