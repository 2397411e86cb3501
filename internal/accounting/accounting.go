// Package accounting says which samples stand behind a committed round, from what the replicated state keeps of a job, and holds that against
// the order of samples (package data). It reads no file.
package accounting

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/data"
)

// mostChecked bounds how many batches of a stretch are held against the order of samples one by one, at each of its two ends.
const mostChecked = 1 << 19

// Audit accounts for the samples of a job's newest durable round. epoch is the samples in one; 0: not known.
func Audit(j *cluster.Job, epoch uint64) api.Accounting {
	a := auditor{Accounting: api.Accounting{ID: j.ID, Name: j.Name, Epoch: epoch, Faults: []string{}, Stretches: []api.AccountedStretch{}}}
	var last cluster.Stretch
	for i := range j.Lineage {
		s := &j.Lineage[i]
		a.follows(&last, s)
		a.stretch(s)
		last = *s
	}
	if m := j.LastCommitted(); m != nil {
		a.Round, a.Samples = m.Round, m.SamplesSeen
		a.ends(&last, m)
	}
	a.Exact = len(a.Faults) == 0
	return a.Accounting
}

type auditor struct{ api.Accounting }

func (a *auditor) fault(format string, args ...any) {
	a.Faults = append(a.Faults, fmt.Sprintf(format, args...))
}

// follows checks that a stretch begins where the one before it ends.
func (a *auditor) follows(before, s *cluster.Stretch) {
	switch {
	case s.FromSample > before.ToSample:
		a.fault("samples %d to %d stand behind no round: round %d ends before them, and what follows it begins after", before.ToSample, s.FromSample-1, before.ToRound)
	case s.FromSample < before.ToSample:
		a.fault("samples %d to %d stand behind two rounds: %d, and what follows it", s.FromSample, before.ToSample-1, before.ToRound)
	}
	if s.FromRound != before.ToRound || s.FromStep != before.ToStep {
		a.fault("generation %d goes on from round %d step %d; what was committed before ends at round %d step %d", s.Generation, s.FromRound, s.FromStep,
			before.ToRound, before.ToStep)
	}
}

// ends checks that the last stretch ends where a round does.
func (a *auditor) ends(last *cluster.Stretch, m *cluster.Manifest) {
	for _, c := range m.Cursors {
		if c.Step != m.Cursors[0].Step {
			a.fault("round %d: pipeline %d stands at step %d, and pipeline %d at step %d", m.Round, c.Pipeline, c.Step, m.Cursors[0].Pipeline, m.Cursors[0].Step)
		}
	}
	if last.ToRound != m.Round || last.ToSample != m.SamplesSeen || last.ToStep != m.Cursors[0].Step || last.Pipelines != len(m.Cursors) {
		a.fault("round %d says %d samples and step %d of %d pipelines; what is known of how it was trained ends at round %d, %d samples, step %d of %d",
			m.Round, m.SamplesSeen, m.Cursors[0].Step, len(m.Cursors), last.ToRound, last.ToSample, last.ToStep, last.Pipelines)
	}
}

// stretch accounts for one stretch.
func (a *auditor) stretch(s *cluster.Stretch) {
	out := api.AccountedStretch{
		Generation: s.Generation, FromRound: s.FromRound, ToRound: s.ToRound, FromSample: s.FromSample, ToSample: s.ToSample,
		Begin: a.place(s.FromSample), Pipelines: []api.AccountedBatches{},
	}
	defer func() { a.Stretches = append(a.Stretches, out) }()
	if s.ToStep <= s.FromStep || s.ToSample <= s.FromSample || s.Pipelines < 1 {
		a.fault("rounds %d to %d of generation %d: steps %d to %d, samples %d to %d, %d pipelines: it has trained on nothing", s.FromRound+1, s.ToRound, s.Generation,
			s.FromStep, s.ToStep, s.FromSample, s.ToSample, s.Pipelines)
		return
	}
	out.End, out.Steps = a.place(s.ToSample-1), s.ToStep-s.FromStep
	batches := out.Steps * uint64(s.Pipelines)
	out.Batch = (s.ToSample - s.FromSample) / batches
	if out.Batch*batches != s.ToSample-s.FromSample || out.Batch == 0 {
		a.fault("rounds %d to %d of generation %d: %d samples are not %d steps of %d pipelines", s.FromRound+1, s.ToRound, s.Generation,
			s.ToSample-s.FromSample, out.Steps, s.Pipelines)
		return
	}
	for p := range s.Pipelines {
		out.Pipelines = append(out.Pipelines, api.AccountedBatches{
			Pipeline: p, First: cursor(s, out.Batch, s.FromStep, p).Position(0), Stride: out.Batch * uint64(s.Pipelines), Samples: out.Batch * out.Steps,
		})
	}
	a.Batches += batches
	half := (mostChecked + uint64(s.Pipelines) - 1) / uint64(s.Pipelines) // steps
	if out.Steps <= 2*half {
		a.check(s, out.Batch, s.FromStep, s.ToStep)
		return
	}
	a.check(s, out.Batch, s.FromStep, s.FromStep+half)
	a.check(s, out.Batch, s.ToStep-half, s.ToStep)
}

// cursor is where a pipeline stood at a step of a stretch.
func cursor(s *cluster.Stretch, batch, step uint64, pipeline int) data.Cursor {
	return data.Cursor{Pipeline: pipeline, Pipelines: s.Pipelines, Batch: int(batch), Step: step, Base: s.FromSample, Since: s.FromStep} //nolint:gosec // A batch.
}

// check holds the batches of steps against the order of samples: each begins where the one before it ends.
func (a *auditor) check(s *cluster.Stretch, batch, from, to uint64) {
	next := s.FromSample + (from-s.FromStep)*uint64(s.Pipelines)*batch
	for step := from; step < to; step++ {
		for p := range s.Pipelines {
			c := cursor(s, batch, step, p)
			if first, last := c.Position(0), c.Position(int(batch)-1); first != next || last != next+batch-1 { //nolint:gosec // A batch.
				a.fault("step %d of pipeline %d of %d: samples %d to %d, expected %d to %d", step, p, s.Pipelines, first, last, next, next+batch-1)
				return
			}
			next += batch
			a.Checked++
		}
	}
	if to == s.ToStep && next != s.ToSample {
		a.fault("the steps up to %d end at sample %d, expected %d", to, next, s.ToSample)
	}
}

// place is where a sample is in its epoch.
func (a *auditor) place(sample uint64) *api.SamplePlace {
	if a.Epoch == 0 {
		return nil
	}
	return &api.SamplePlace{Epoch: sample / a.Epoch, Index: sample % a.Epoch}
}
