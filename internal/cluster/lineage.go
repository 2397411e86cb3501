package cluster

import "slices"

// Stretch is a run of committed rounds that one placement, or several with the same pipelines and batch, trained on consecutive samples. It says
// what stands behind a round after the manifests of older ones are gone.
type Stretch struct {
	Generation uint64 `json:"generation"` // the first one of it
	FromRound  uint64 `json:"from_round"` // exclusive: the round that it went on from
	ToRound    uint64 `json:"to_round"`
	FromStep   uint64 `json:"from_step"` // of each pipeline, likewise
	ToStep     uint64 `json:"to_step"`
	FromSample uint64 `json:"from_sample"` // of the order of samples: the first one
	ToSample   uint64 `json:"to_sample"`   // the one after the last
	Pipelines  int    `json:"pipelines"`
}

// maxLineage bounds the stretches of a job: what is older is joined where the arithmetic of its samples is the same.
const maxLineage = 256

// extend notes a round that follows the newest durable one. The caller adds the round afterwards.
func (j *Job) extend(m *Manifest) {
	next := Stretch{Generation: m.Generation, ToRound: m.Round, ToStep: stepOf(m), ToSample: m.SamplesSeen, Pipelines: len(m.Cursors)}
	if was := j.LastCommitted(); was != nil {
		next.FromRound, next.FromStep, next.FromSample = was.Round, stepOf(was), was.SamplesSeen
	}
	all := slices.Clone(j.Lineage)
	if n := len(all); n > 0 && all[n-1].Generation == next.Generation && all[n-1].continues(&next) {
		all[n-1].ToRound, all[n-1].ToStep, all[n-1].ToSample = next.ToRound, next.ToStep, next.ToSample
	} else {
		all = append(all, next)
	}
	for i := 1; i < len(all) && len(all) > maxLineage; {
		if a, b := &all[i-1], &all[i]; a.continues(b) {
			a.ToRound, a.ToStep, a.ToSample = b.ToRound, b.ToStep, b.ToSample
			all = slices.Delete(all, i, i+1)
		} else {
			i++
		}
	}
	j.Lineage = all
}

// continues reports whether b goes on where s ends, with the same number of samples in a step.
func (s *Stretch) continues(b *Stretch) bool {
	return s.ToRound == b.FromRound && s.ToStep == b.FromStep && s.ToSample == b.FromSample && s.Pipelines == b.Pipelines &&
		(s.ToSample-s.FromSample)*(b.ToStep-b.FromStep) == (b.ToSample-b.FromSample)*(s.ToStep-s.FromStep)
}

// cutLineage forgets what was trained after the newest durable round.
func (j *Job) cutLineage() {
	m, all := j.LastCommitted(), slices.Clone(j.Lineage)
	for n := len(all); n > 0 && (m == nil || all[n-1].FromRound >= m.Round); n-- {
		all = all[:n-1]
	}
	if n := len(all); n > 0 && all[n-1].ToRound > m.Round {
		all[n-1].ToRound, all[n-1].ToStep, all[n-1].ToSample = m.Round, stepOf(m), m.SamplesSeen
	}
	j.Lineage = all
}

// stepOf is the step that the pipelines of a round stood at.
func stepOf(m *Manifest) uint64 {
	if len(m.Cursors) == 0 {
		return 0
	}
	return m.Cursors[0].Step
}
