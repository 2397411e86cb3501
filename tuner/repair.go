package tuner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/schedule"
)

// repair changes a layout that does not fit: shorter warm-ups (afp), another cut, recomputation where that is open, and the last
// two together. Of what fits the fastest is returned; else the layout that lacks the least.
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
		return l.shortage.bytes < other.shortage.bytes
	}
	return l.Predicted.BatchSeconds < other.Predicted.BatchSeconds
}

// room is how many bytes stage s may take: its part of its device's memory, which its device's chunks share.
func (l *layout) room(s int) (bytes int64, limited bool) {
	capacity := l.profile.Devices[l.homes[s]].CapacityBytes
	if capacity == 0 {
		return 0, false
	}
	return capacity / int64(max(l.Chunks, 1)), true
}

// size is the memory of one stage of all pipelines.
func (l *layout) size(spec StageSpec) (int64, error) {
	m, vector, err := l.profile.Sizer.Stage(spec)
	return int64(l.Pipelines)*m.Total() + int64(l.vectors)*vector, err
}

// limit bounds each device's warm-up by what its memory holds. Devices of such plans have one stage each.
func (l *layout) limit() error {
	limits := make([]int, len(l.Split))
	pinned := schedule.PinnedByStage(l.plan)
	for s, run := range l.Split {
		spec := StageSpec{From: run[0], To: run[1], Samples: l.samples, Recompute: l.Recompute[s]}
		room, limited := l.room(s)
		for spec.Slots = pinned[s]; limited && spec.Slots > 1; spec.Slots-- {
			bytes, err := l.size(spec)
			if err != nil {
				return err
			}
			if bytes <= room {
				break
			}
		}
		limits[s] = spec.Slots
	}
	if slices.Equal(limits, pinned) {
		return errors.New("no stage's memory bounds its warm-up")
	}
	l.PinnedLimit = limits
	return nil
}

// recut splits the model anew, with the devices' memory as a bound, for as many pinned micro-batches as the plan has now.
func (l *layout) recut() error { return l.recutFor(nil) }

// recutFor is recut for stages that take as long as each other, or devices: see cut.
func (l *layout) recutFor(homes []int) error {
	pinned, halves, versions := schedule.PinnedByStage(l.plan), schedule.HalvesByStage(l.plan), schedule.VersionsByStage(l.plan)
	var failed error
	err := l.cut(homes, func(s, from, to int) bool {
		room, limited := l.room(s)
		if !limited {
			return true
		}
		bytes, err := l.size(StageSpec{
			From: from, To: to, Samples: l.samples, Slots: pinned[s], WeightSlots: halves[s], Versions: versions[s],
			Recompute: l.Recompute[s],
		})
		failed = errors.Join(failed, err)
		return bytes <= room
	})
	return errors.Join(err, failed)
}

// recompute has stages compute again, one kind after the other, until what is short fits or nothing more can be gained. The
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
			short := l.shortage.device < 0 || l.shortage.device == home
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

// next is the kind after one; "" after the last.
func next(kinds []string, kind string) string {
	if i := slices.Index(kinds, kind); i >= 0 && i+1 < len(kinds) {
		return kinds[i+1]
	}
	return ""
}

// noFit says what the candidate lacks that lacks the least, and looks for the nearest change that fits.
func (s Space) noFit(all []*layout) error {
	var nearest *layout
	var failed error
	for _, l := range all {
		if l.Verdict == NoMemory && (nearest == nil || l.shortage.bytes < nearest.shortage.bytes) {
			nearest = l
		}
		if l.Verdict == Fails && failed == nil {
			failed = fmt.Errorf("tuner: no candidate can run: %s with %d micro-batches: %s", l.Schedule, l.MicroBatches, l.Reason)
		}
	}
	if nearest == nil {
		return failed
	}
	return &NoFitError{
		Stage: nearest.shortage.stage, Device: nearest.shortage.device, Bytes: nearest.shortage.bytes, Fix: s.fix(nearest),
	}
}

// fix names the nearest change to the space under which something fits, in the order in which they cost least.
func (s Space) fix(nearest *layout) string {
	for _, change := range []struct {
		text  func(c Candidate) string
		apply func(*Space) bool
	}{
		{func(c Candidate) string { return fmt.Sprintf("pipelines: %d fits", c.Pipelines) }, func(t *Space) bool {
			t.Pipelines = nil
			return len(s.Pipelines) > 0 && s.Pipelines[0] > 1
		}},
		{func(c Candidate) string {
			return fmt.Sprintf("micro_batches: %d (smaller micro-batches, of %s) fits", c.MicroBatches, samplesText(s.Batch/c.MicroBatches))
		}, func(t *Space) bool {
			t.MicroBatches = divisors(s.Batch)
			return len(t.MicroBatches) > len(s.MicroBatches)
		}},
		{func(c Candidate) string { return fmt.Sprintf("recompute: %s fits", recomputeText(c.Recompute)) }, func(t *Space) bool {
			t.Recompute, t.RecomputeByStage = []string{"none", "block", "full"}, nil
			return len(s.RecomputeByStage) > 0 || len(s.Recompute) == 1 && s.Recompute[0] == "none"
		}},
		{func(c Candidate) string {
			return fmt.Sprintf("stages: %d, on as many devices like these, fits", c.Stages)
		}, (*Space).moreStages},
		{func(c Candidate) string {
			return fmt.Sprintf("stages: %d with micro_batches: %d and recompute: %s fits", c.Stages, c.MicroBatches, recomputeText(c.Recompute))
		}, func(t *Space) bool {
			t.Pipelines, t.MicroBatches, t.RecomputeByStage = []int{1}, divisors(s.Batch), nil
			t.Recompute = []string{"none", "block", "full"}
			t.moreStages()
			return true
		}},
	} {
		tried := s
		if !change.apply(&tried) {
			continue
		}
		all, err := tried.predictAll()
		if err != nil {
			continue
		}
		if out := rank(all); len(out.Ranked) > 0 {
			return change.text(out.Ranked[0])
		}
	}
	held := nearest.Predicted.Stages[nearest.shortage.stage].Memory
	return fmt.Sprintf("no smaller micro-batch, recomputation or number of stages was found that fits; that stage's weights, gradients "+
		"and optimizer state alone take %s", bytesText(held.Weights+held.Gradients+held.State))
}

// moreStages replaces the targets by up to twice as many stages, on devices like the last.
func (s *Space) moreStages() bool {
	t := s.Targets[len(s.Targets)-1]
	s.Targets = nil
	for k := t.Stages + 1; k <= min(2*t.Stages+2, len(t.Profile.Layers)); k++ {
		p := *t.Profile
		p.Devices, p.Links = slices.Clone(p.Devices), slices.Clone(p.Links)
		for len(p.Devices) < k {
			p.Devices = append(p.Devices, p.Devices[len(p.Devices)-1])
		}
		for len(p.Links) < len(p.Devices)-1 {
			link := Link{}
			if n := len(p.Links); n > 0 {
				link = p.Links[n-1]
			}
			p.Links = append(p.Links, link)
		}
		s.Targets = append(s.Targets, Target{Stages: k, Threads: t.Threads, Profile: &p})
	}
	return len(s.Targets) > 0
}

// divisors of n, ascending.
func divisors(n int) (all []int) {
	for d := 1; d <= n; d++ {
		if n%d == 0 {
			all = append(all, d)
		}
	}
	return all
}

func samplesText(n int) string {
	if n == 1 {
		return "1 sample"
	}
	return fmt.Sprintf("%d samples", n)
}

// recomputeText is what a job file says: a word for all stages, or a list.
func recomputeText(all []string) string {
	if len(slices.Compact(slices.Clone(all))) == 1 {
		return all[0]
	}
	return fmt.Sprintf("%q", all)
}
