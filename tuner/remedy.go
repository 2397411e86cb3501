package tuner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
)

// noFit says what the candidate lacks that lacks the least, and looks for the nearest change that fits.
func (s Space) noFit(all []*layout) error {
	var nearest *layout
	var failed error
	for _, l := range all {
		if l.Verdict == NoMemory && (nearest == nil || l.shortage.bytes < nearest.shortage.bytes) {
			nearest = l
		}
		if l.Verdict == Fails && failed == nil {
			failed = fmt.Errorf("tuner: no candidate can run: %s with %s: %s", l.Schedule, words.Count(l.MicroBatches, "micro-batch"), l.Reason)
		}
	}
	if nearest == nil {
		return failed
	}
	e := &NoFitError{Stage: nearest.shortage.stage, Device: nearest.shortage.device, Bytes: nearest.shortage.bytes, Fits: s.remedy()}
	if e.Fits != nil {
		e.Fix = strings.Join(s.differences(*e.Fits), " with ") + " fits"
		return e
	}
	held := nearest.Predicted.Stages[nearest.shortage.stage].Memory
	e.Fix = fmt.Sprintf("no smaller micro-batch, recomputation or number of stages was found that fits; that stage's weights, gradients "+
		"and optimizer state alone take %s", bytesText(held.Weights+held.Gradients+held.State))
	return e
}

// remedy is a candidate of the nearest wider space in which one fits, of those that change the fewest keys the best; nil without. Spaces are tried in the order in which
// what they change costs least: pipelines, micro-batches, recomputation, all three, and then more stages.
func (s Space) remedy() *Candidate {
	everything := func(t *Space) bool {
		pipelines, micros, recompute := t.fewerPipelines(), t.allMicroBatches(), t.anyRecompute()
		return pipelines || micros || recompute
	}
	for _, widen := range []func(*Space) bool{
		(*Space).fewerPipelines, (*Space).allMicroBatches, (*Space).anyRecompute, everything, (*Space).moreStages,
		func(t *Space) bool { return t.moreStages() && everything(t) },
	} {
		wider := s
		if !widen(&wider) {
			continue
		}
		all, err := wider.predictAll()
		if err != nil {
			continue // it has no candidates
		}
		if fit := rank(all).Ranked; len(fit) > 0 {
			best := slices.MinFunc(fit, func(a, b Candidate) int {
				return cmp.Or(len(s.differences(a))-len(s.differences(b)), a.Devices-b.Devices)
			})
			return &best
		}
	}
	return nil
}

// differences are the keys, with values, that a candidate has and that the space does not allow.
func (s Space) differences(c Candidate) (all []string) {
	if !slices.ContainsFunc(s.Targets, func(t Target) bool { return t.Devices == c.Devices }) {
		all = append(all, fmt.Sprintf("stages: %d, on as many devices like these,", c.Devices))
	}
	if len(s.Pipelines) > 0 && !slices.Contains(s.Pipelines, c.Pipelines) {
		all = append(all, fmt.Sprintf("pipelines: %d", c.Pipelines))
	}
	if !slices.Contains(s.MicroBatches, c.MicroBatches) {
		all = append(all, fmt.Sprintf("micro_batches: %d (of %s)", c.MicroBatches, words.Count(s.Batch/c.MicroBatches, "sample")))
	}
	allowed := slices.Equal(s.RecomputeByStage, c.Recompute)
	if len(s.RecomputeByStage) == 0 {
		allowed = !slices.ContainsFunc(c.Recompute, func(kind string) bool { return !slices.Contains(s.Recompute, kind) })
	}
	if !allowed {
		all = append(all, "recompute: "+recomputeText(c.Recompute))
	}
	return all
}

// Widenings change a space, and report whether they did.

func (s *Space) fewerPipelines() bool {
	if len(s.Pipelines) == 0 || s.Pipelines[0] == 1 {
		return false
	}
	most := s.Pipelines[0]
	s.Pipelines = nil
	for n := 1; n < most; n++ {
		s.Pipelines = append(s.Pipelines, n)
	}
	return true
}

func (s *Space) allMicroBatches() bool {
	before := len(s.MicroBatches)
	s.MicroBatches = divisors(s.Batch)
	return len(s.MicroBatches) > before
}

func (s *Space) anyRecompute() bool {
	if len(s.RecomputeByStage) == 0 && len(s.Recompute) > 1 {
		return false
	}
	s.Recompute, s.RecomputeByStage = []string{"none", "block", "full"}, nil
	return true
}

// moreStages replaces the targets by up to twice as many stages, on devices like the last.
func (s *Space) moreStages() bool {
	t := s.Targets[len(s.Targets)-1]
	var more []Target
	for k := t.Devices + 1; k <= min(2*t.Devices+2, len(t.Profile.Layers)); k++ {
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
		more = append(more, Target{Devices: k, Threads: t.Threads, Profile: &p})
	}
	if len(more) == 0 {
		return false
	}
	s.Targets = more
	return true
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

// recomputeText is what a job file says: a word for all stages, or a list.
func recomputeText(all []string) string {
	if len(slices.Compact(slices.Clone(all))) == 1 {
		return all[0]
	}
	return "[" + strings.Join(all, ", ") + "]"
}
