package elastic

import (
	"cmp"
	"slices"
)

// The steps that Seconds runs through, and those before it measures; the parts of a layer's exchange.
const (
	simulatedSteps = 24
	warmSteps      = 12
	partsOfLayer   = 8
)

// Seconds is how long a step takes where so many layers are late. It runs through some steps of groups that are alike: what a group sends of a layer goes, from the end of its backward,
// to the owners of its segments, who send as much back as sums. A link carries what was handed to it first. At the end of a step a pipeline waits for the sums of the layers that are not
// late, and for those of the step before of the late ones.
func (s *Step) Seconds(late int) float64 {
	lines := make([]line, len(s.Links))
	for i := range lines {
		lines[i].of = s.Links[i]
	}
	before, backward := make([]*exchange, len(s.Layers)), 0.0 // of late layers, in the step before
	for _, l := range s.Layers {
		backward += l.Backward
	}
	now, from := 0.0, 0.0
	for step := range simulatedSteps {
		if step == warmSteps {
			from = now
		}
		now += s.Compute - backward
		sent := make([]*exchange, len(s.Layers))
		for l, one := range slices.Backward(s.Layers) {
			now += one.Backward
			sent[l] = lines[one.Link].begin(now, one.Bytes)
		}
		for l, one := range s.Layers {
			of := sent[l]
			if l < late {
				of, before[l] = before[l], of
			}
			now = max(now, lines[one.Link].end(of))
		}
	}
	return (now - from) / (simulatedSteps - warmSteps)
}

// exchange is that of a layer in a step.
type exchange struct {
	left int     // sums that have not come yet
	done float64 // when the last one did
}

// parcel is a part of an exchange on its way.
type parcel struct {
	of      *exchange
	at      float64 // when it was handed to the line
	seconds float64 // that the line takes to carry it
	sum     bool    // on the way back
}

// line carries what the groups that are alike send, each over its own end of a link.
type line struct {
	of      LinkStep
	waiting []parcel // by at
	free    float64
}

// begin hands an exchange to the line.
func (l *line) begin(now, bytes float64) *exchange {
	if bytes == 0 {
		return nil
	}
	of := &exchange{left: partsOfLayer}
	for range partsOfLayer {
		l.add(parcel{of, now, bytes * l.of.SecondsPerByte / 2 / partsOfLayer, false})
	}
	return of
}

// end is when an exchange is done, with nothing handed to the line before that; 0 of none.
func (l *line) end(of *exchange) float64 {
	if of == nil {
		return 0
	}
	for of.left > 0 {
		l.carry()
	}
	return of.done
}

// carry carries the first parcel that waits. Where it is a message, the sum is handed over when it has come.
func (l *line) carry() {
	next := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	l.free = max(l.free, next.at) + next.seconds
	next.at = l.free + l.of.Latency
	if !next.sum {
		next.sum = true
		l.add(next)
		return
	}
	next.of.left--
	next.of.done = next.at
}

// add puts a parcel behind those that were handed over before it, or at the same time.
func (l *line) add(p parcel) {
	at, _ := slices.BinarySearchFunc(l.waiting, p, func(a, b parcel) int {
		if a.at == b.at {
			return -1
		}
		return cmp.Compare(a.at, b.at)
	})
	l.waiting = slices.Insert(l.waiting, at, p)
}
