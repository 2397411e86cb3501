package schedule

import "slices"

// links carries messages between stages. Each pipeline has a box for each boundary and direction, in which the times of
// arrival stand in the order of sending, as Check has proved that they are taken.
type links struct {
	boundaries int
	placement  []int
	latency    []float64 // per boundary
	transmit   []float64 // per boundary: how long a message occupies its link
	norm       []float64 // per boundary: how long a message with a norm does
	bytes      []int64   // per boundary: of a message
	wires      []wire
	wire       [2][]int // per direction and boundary: index of its wire, -1 inside of a device
	boxes      []inbox  // [(pipeline*2 + direction)*boundaries + boundary]
}

// The directions of a boundary.
const (
	down = iota // activations
	up          // gradients
)

// wire is one direction of the link between two devices.
type wire struct {
	LinkLoad
	free float64 // when the last message is on it
}

// inbox holds times of arrival, a queue: a ring, since a long batch would otherwise fill memory.
type inbox struct {
	ring        []float64 // its length is a power of 2
	head, count int
}

func (b *inbox) put(time float64) {
	if b.count == len(b.ring) {
		grown := make([]float64, max(4, 2*b.count))
		n := copy(grown, b.ring[b.head:])
		copy(grown[n:], b.ring[:b.head])
		b.ring, b.head = grown, 0
	}
	b.ring[(b.head+b.count)&(len(b.ring)-1)] = time
	b.count++
}

func newLinks(placement []int, costs Costs, pipelines int) links {
	n := len(placement) - 1
	l := links{
		boundaries: n, placement: placement, latency: make([]float64, n), transmit: make([]float64, n), norm: make([]float64, n),
		bytes: make([]int64, n), wire: [2][]int{make([]int, n), make([]int, n)}, boxes: make([]inbox, 2*n*pipelines),
	}
	index := make(map[[2]int]int)
	for b := range n {
		l.latency[b], l.transmit[b], l.bytes[b] = at(costs.Link, b), costs.transmit(b), at(costs.MessageBytes, b)
		if bandwidth := at(costs.Bandwidth, b); bandwidth > 0 {
			l.norm[b] = normBytes / bandwidth
		}
		l.wire[down][b] = l.wireOf(index, placement[b], placement[b+1])
		l.wire[up][b] = l.wireOf(index, placement[b+1], placement[b])
	}
	return l
}

func (l *links) wireOf(index map[[2]int]int, from, to int) int {
	if from == to {
		return -1
	}
	i, known := index[[2]int{from, to}]
	if !known {
		i = len(l.wires)
		index[[2]int{from, to}] = i
		l.wires = append(l.wires, wire{LinkLoad: LinkLoad{From: from, To: to}})
	}
	return i
}

// input is the box from which an op of pipeline p takes a message, -1 for an op that needs none.
func (l *links) input(p int, op *Op) int {
	switch {
	case crossesDown(op.Kind):
		return l.box(p, down, op.Stage-1)
	case crossesUp(op.Kind):
		return l.box(p, up, op.Stage)
	}
	return -1
}

// box is that of a pipeline's messages over a boundary, -1 beyond the ends of the pipeline.
func (l *links) box(p, direction, boundary int) int {
	if boundary < 0 || boundary >= l.boundaries {
		return -1
	}
	return (2*p+direction)*l.boundaries + boundary
}

// take removes the first message of a box and returns when it arrives; false if none has been sent.
func (l *links) take(box int) (arrival float64, ok bool) {
	b := &l.boxes[box]
	if b.count == 0 {
		return 0, false
	}
	arrival = b.ring[b.head]
	b.head = (b.head + 1) & (len(b.ring) - 1)
	b.count--
	return arrival, true
}

// send puts the message of an op that has ended on its way, and returns its box and the stage that takes it; -1 for an op that
// sends none.
func (l *links) send(p int, op *Op, now float64) (box, stage int) {
	direction, boundary, to := down, op.Stage, op.Stage+1
	switch {
	case crossesDown(op.Kind) && to <= l.boundaries:
	case crossesUp(op.Kind) && op.Stage > 0:
		direction, boundary, to = up, op.Stage-1, op.Stage-1
	default:
		return -1, -1
	}
	box = l.box(p, direction, boundary)
	l.put(box, direction, boundary, l.transmit[boundary], l.bytes[boundary], now)
	return box, to
}

// sendNorm puts a norm on its way over a boundary, and returns its box; -1 beyond the ends of the pipeline.
func (l *links) sendNorm(p, direction, boundary int, now float64) int {
	box := l.box(p, direction, boundary)
	if box >= 0 {
		l.put(box, direction, boundary, l.norm[boundary], normBytes, now)
	}
	return box
}

// put carries a message to its box.
func (l *links) put(box, direction, boundary int, transmit float64, bytes int64, now float64) {
	arrival := now
	if i := l.wire[direction][boundary]; i >= 0 {
		arrival = l.wires[i].carry(now, transmit, bytes) + l.latency[boundary]
	}
	l.boxes[box].put(arrival)
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

func (l *links) result() []LinkLoad {
	var loads []LinkLoad
	for _, w := range l.wires {
		if w.Messages > 0 {
			loads = append(loads, w.LinkLoad)
		}
	}
	slices.SortFunc(loads, func(a, b LinkLoad) int {
		if a.From != b.From {
			return a.From - b.From
		}
		return a.To - b.To
	})
	return loads
}
