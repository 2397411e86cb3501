package elastic

import (
	"math"
	"slices"
)

// The steps that Seconds runs through, and those before it measures; the passes of a step, and the parts of all exchanges of one, that are told apart at most.
const (
	simulatedSteps = 24
	warmSteps      = 12
	mostPasses     = 64
	mostParts      = 64
	partsOfLayer   = 8 // at most
)

// Seconds is how long a step takes where so many layers are late. It runs through some steps of groups that are alike: what a group sends of a layer goes, from the end of its backward,
// to the owners of its segments, who send as much back as sums. A link carries what was handed to it first. A device takes up what has come between two operations: the forward of all
// layers, and the backward of each. At the end of a step a pipeline waits for the sums of the layers that are not
// late, and for those of the step before of the late ones.
func (s *Step) Seconds(late int) float64 {
	of, lines := &operations{}, make([]line, len(s.Links))
	for i := range lines {
		lines[i] = line{of: s.Links[i], device: of, parts: max(1, min(partsOfLayer, mostParts/max(1, len(s.Layers))))}
	}
	before, forward, backward := make([]*exchange, len(s.Layers)), 0.0, 0.0 // before: of late layers, in the step before
	for _, l := range s.Layers {
		forward, backward = forward+l.Forward, backward+l.Backward
	}
	passes := 1 // but for the last backward
	if forward > 0 {
		passes = int(min(mostPasses, max(1, math.Round((s.Compute-backward)/forward))))
	}
	now, from := 0.0, 0.0
	for step := range simulatedSteps {
		if step == warmSteps {
			from = now
		}
		for range passes {
			now = of.run(now, (s.Compute-backward)/float64(passes))
		}
		sent := make([]*exchange, len(s.Layers))
		for l, one := range slices.Backward(s.Layers) {
			now = of.run(now, one.Backward)
			sent[l] = lines[one.Link].begin(now, one.Bytes)
		}
		for l, one := range s.Layers {
			awaited := sent[l]
			if l < late {
				awaited, before[l] = before[l], awaited
			}
			now = max(now, lines[one.Link].end(awaited))
		}
	}
	return (now - from) / (simulatedSteps - warmSteps)
}

// operations are what a device has done so far, and has not been idle between.
type operations struct{ begin, end []float64 }

// run has the device do the next operation, and returns its end.
func (o *operations) run(now, seconds float64) float64 {
	o.begin, o.end = append(o.begin, now), append(o.end, now+seconds)
	return now + seconds
}

// takes is when the device takes up what has come: at once, or when the operation in progress has ended. from is where those that have ended end, and moves on: what comes by a line comes in
// order.
func (o *operations) takes(at float64, from *int) float64 {
	for *from < len(o.end) && o.end[*from] < at {
		*from++
	}
	if *from < len(o.end) && o.begin[*from] < at {
		return o.end[*from]
	}
	return at
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
}

// line carries what the groups that are alike send, each over its own end of a link.
type line struct {
	of             LinkStep
	device         *operations
	parts          int
	messages, sums []parcel // that wait, as they were handed over
	free           float64
	ended          int // operations, when something came last
}

// begin hands an exchange to the line.
func (l *line) begin(now, bytes float64) *exchange {
	if bytes == 0 {
		return nil
	}
	of := &exchange{left: l.parts}
	for range l.parts {
		l.messages = append(l.messages, parcel{of, now, bytes * l.of.SecondsPerByte / 2 / float64(l.parts)})
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

// carry carries what was handed over first. Where it is a message, the sum is handed over when it has come.
func (l *line) carry() {
	from := &l.messages
	if len(l.sums) > 0 && (len(l.messages) == 0 || l.sums[0].at < l.messages[0].at) {
		from = &l.sums
	}
	next := (*from)[0]
	*from = (*from)[1:]
	l.free = max(l.free, next.at) + next.seconds
	next.at = l.device.takes(l.free+l.of.Latency, &l.ended)
	if from == &l.messages {
		l.sums = append(l.sums, next)
		return
	}
	next.of.left--
	next.of.done = next.at
}
