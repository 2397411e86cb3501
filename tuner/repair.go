package tuner

import (
	"errors"
	"slices"

	"github.com/avgpipe/avgpipe/schedule"
)

// repair changes a layout that does not fit: shorter warm-ups (afp), another cut, recomputation where that is open, and that with
// each of the other two. Of what fits the fastest is returned; else the layout that lacks the least.
func (s Space) repair(l *layout) *layout {
	best := l
	try := func(change func(*layout) error) {
		if tried := l.changed(change); tried != nil && tried.better(best) {
			best = tried
		}
	}
	if l.Schedule == "afp" {
		try((*layout).limit)
	}
	try((*layout).recut)
	if l.Chunks > 1 {
		try(func(l *layout) error { return l.recutFor(l.homes) })
	}
	if len(s.RecomputeByStage) == 0 && len(s.Recompute) > 1 {
		try(func(l *layout) error { return l.recompute(s.Recompute) })
		try(func(l *layout) error {
			if err := l.recompute(s.Recompute); err != nil {
				return err
			}
			return l.recut()
		})
		if l.Schedule == "afp" {
			try(func(l *layout) error { return l.recomputeAndLimit(s.Recompute) })
		}
	}
	return best
}

// changed is the layout after a change; nil where that cannot be laid out.
func (l *layout) changed(change func(*layout) error) *layout {
	tried := *l
	tried.Recompute = slices.Clone(l.Recompute)
	tried.Verdict, tried.Reason, tried.Predicted = "", "", Prediction{}
	if err := change(&tried); err != nil {
		return nil
	}
	if err := tried.lay(); err != nil {
		return nil
	}
	return &tried
}

// better reports whether l is to be preferred: it fits and the other does not, it lacks less, or it is faster.
func (l *layout) better(other *layout) bool {
	switch {
	case (l.shortage == nil) != (other.shortage == nil):
		return l.shortage == nil
	case l.shortage != nil:
		return l.shortage.Bytes() < other.shortage.Bytes()
	}
	return l.Predicted.BatchSeconds < other.Predicted.BatchSeconds
}

// room is how many bytes stage s may take: its part of its device's memory, which chunks share, and other devices in it; 0 is no limit.
func (l *layout) room(s int) int64 {
	sharing := 0
	for d := range l.profile.Devices {
		if l.profile.memory(d) == l.profile.memory(l.homes[s]) {
			sharing++
		}
	}
	return l.profile.Devices[l.homes[s]].CapacityBytes / int64(max(l.Chunks, 1)*sharing)
}

// errUnbounded says that memory is no reason for a shorter warm-up.
var errUnbounded = errors.New("no stage's memory bounds its warm-up")

// limit bounds each device's warm-up by what its memory holds. Devices of such plans have one stage each.
func (l *layout) limit() error {
	inFlight := schedule.InFlightByStage(l.plan)
	limits, err := InFlightLimits(l.profile.Sizer, l.plan, l.profile.memories(), l.Split, l.samples, l.Pipelines, l.Recompute, l.room)
	if err != nil {
		return err
	}
	for s, limit := range limits {
		if limit == 0 {
			limits[s] = inFlight[s]
		}
	}
	if slices.Equal(limits, inFlight) {
		return errUnbounded
	}
	l.InFlightLimit = limits
	return nil
}

// recut splits the model anew, with the devices' memory as a bound, for as many in flight micro-batches as the plan has now.
func (l *layout) recut() error { return l.recutFor(nil) }

// recutFor is recut for stages that take as long as each other, or devices: see cut.
func (l *layout) recutFor(homes []int) error {
	specs := stageSpecs(l.plan, l.profile.memories(), l.samples, l.Pipelines, l.Recompute)
	var failed error
	err := l.cut(homes, func(s, from, to int) bool {
		room := l.room(s)
		if room == 0 {
			return true
		}
		spec := specs[s]
		spec.From, spec.To = from, to
		m, err := l.profile.Sizer.Stage(spec)
		failed = errors.Join(failed, err)
		return m.OnDevice() <= room
	})
	return errors.Join(err, failed)
}

// recompute has stages recompute, one kind after the other, until what is short fits or nothing more can be gained. The
// stage that holds most activations, where memory is short, comes first.
func (l *layout) recompute(kinds []string) error {
	for {
		if err := l.memory(); err != nil {
			return err
		}
		if l.shortage == nil {
			return nil
		}
		best := -1
		for s, home := range l.homes {
			short := l.shortage.Device < 0 || l.shortage.Device == l.profile.memory(home)
			if !short || next(kinds, l.Recompute[s]) == "" {
				continue
			}
			if best < 0 || l.Predicted.Stages[s].Memory.Activations > l.Predicted.Stages[best].Memory.Activations {
				best = s
			}
		}
		if best < 0 {
			return nil // all that can be done; lay says what is short still
		}
		l.Recompute[best] = next(kinds, l.Recompute[best])
	}
}

// recomputeAndLimit has stages recompute what does not fit with the shortest warm-up, that of 1f1b, and then runs as many forwards
// ahead as the memory holds.
func (l *layout) recomputeAndLimit(kinds []string) error {
	l.InFlightLimit = make([]int, l.Devices)
	for d := range l.InFlightLimit {
		l.InFlightLimit[d] = min(l.MicroBatches, l.Devices-d)
	}
	if err := l.generate(); err != nil {
		return err
	}
	if err := l.recompute(kinds); err != nil {
		return err
	}
	l.InFlightLimit = nil
	l.price() // stages that recompute are slower, and others may run further ahead of them
	if err := l.generate(); err != nil {
		return err
	}
	if err := l.limit(); err != nil && !errors.Is(err, errUnbounded) {
		return err
	}
	return nil
}

// next is the kind after one; "" after the last.
func next(kinds []string, kind string) string {
	if i := slices.Index(kinds, kind); i >= 0 && i+1 < len(kinds) {
		return kinds[i+1]
	}
	return ""
}
