// Package drift holds what a job's worker observes of its batch times against what tuning has predicted, and says what has changed: a
// term of a stage's work, or a link. It is pure.
package drift

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/tuner"
)

// The rules of drift, beside Watch.Hold and the bound that a report says.
const (
	returned = 0.5 // of the bound: within this, a batch time is back
	// cause is the share of a drift that one term of work, or the links, must explain to be named. Else waiting is, which
	// follows from work elsewhere, or from others on the machine.
	cause = 0.25
)

// Watch holds a job's batch times against their prediction. It is a state machine without a clock.
type Watch struct {
	Hold  time.Duration // how long observations must be beyond the bound, or back, before that is said
	Now   *api.Drift    // nil: the job runs as expected
	since time.Time     // since when observations have spoken against Now; zero: they do not
}

// See takes an observation of a job that runs as chosen. It reports whether the job has begun to drift, or has returned.
func (d *Watch) See(at time.Time, c Chosen, observed *tuner.Measurement, bound float64) bool {
	expected := Expectation(c.Candidate)
	if expected.BatchSeconds <= 0 || observed.BatchSeconds <= 0 || bound <= 0 {
		return false
	}
	relative := observed.BatchSeconds/expected.BatchSeconds - 1
	turned := math.Abs(relative) > bound
	if d.Now != nil {
		turned = math.Abs(relative) < returned*bound
	}
	switch {
	case !turned:
		d.since = time.Time{}
		if d.Now != nil {
			d.Now = describe(d.Now.Since, c, observed)
		}
		return false
	case d.since.IsZero():
		d.since = at
	}
	if at.Sub(d.since) < d.Hold {
		return false
	}
	if d.Now == nil {
		d.Now = describe(d.since, c, observed)
	} else {
		d.Now = nil
	}
	d.since = time.Time{}
	return true
}

// describe says what moved.
func describe(since time.Time, c Chosen, observed *tuner.Measurement) *api.Drift {
	expected := Expectation(c.Candidate)
	d := &api.Drift{
		Since: since.UTC(), PredictedSeconds: expected.BatchSeconds, ObservedSeconds: observed.BatchSeconds,
		Relative: observed.BatchSeconds/expected.BatchSeconds - 1,
	}
	moved := movedMost(c, observed, observed.BatchSeconds-expected.BatchSeconds)
	d.Stage, d.Term, d.TermPredicted, d.TermObserved = moved.stage, moved.term, moved.expected, moved.observed
	direction := "longer"
	if d.Relative < 0 {
		direction = "shorter"
	}
	d.Text = fmt.Sprintf("a batch takes %s, %.0f%% %s than the expected %s", words.Seconds(d.ObservedSeconds), 100*math.Abs(d.Relative),
		direction, words.Seconds(d.PredictedSeconds))
	if d.Term != "" {
		d.Text += "; most of that is " + moved.String()
	}
	return d
}

// move is a term of a batch of all pipelines that differs from what was expected, in seconds.
type move struct {
	stage              int // of a transfer that before the link
	term               api.Term
	expected, observed float64 // of a transfer: of one message
	effect             float64 // what it adds to the batch
	pipelines          int     // whose work it is
}

// String says what moved.
func (m move) String() string {
	seconds := words.Seconds(m.observed) + " instead of " + words.Seconds(m.expected)
	if m.term == api.TermTransfer {
		return fmt.Sprintf("%s between stages %d and %d, %s for a message", m.term, m.stage, m.stage+1, seconds)
	}
	if m.term != api.TermWait && m.pipelines > 1 {
		seconds += fmt.Sprintf(" for the %d pipelines together", m.pipelines)
	}
	return fmt.Sprintf("%s of stage %d, %s", m.term, m.stage, seconds)
}

// by is what it adds in the direction of the whole.
func (m move) by(whole float64) float64 { return math.Copysign(1, whole) * m.effect }

// movedMost finds the term of work, or the link, that explains most, or where none explains the whole, the waiting that does.
func movedMost(c Chosen, observed *tuner.Measurement, whole float64) move {
	expected, n := Expectation(c.Candidate).Stages, float64(max(c.Pipelines, 1))
	var work, waiting move
	most := func(best *move, m move) {
		if m.by(whole) > best.by(whole) {
			*best = m
		}
	}
	term := func(k int, t api.Term, e, o float64) move { return move{k, t, e, o, o - e, c.Pipelines} }
	for k := range min(len(expected), len(observed.Stages)) {
		e, o := expected[k], observed.Stages[k]
		most(&work, term(k, api.TermCompute, n*e.ComputeSeconds, n*o.ComputeSeconds))
		most(&work, term(k, api.TermOptimizer, n*e.OptimizerSeconds, n*o.OptimizerSeconds))
		most(&work, term(k, api.TermAverage, n*e.AverageSeconds, n*o.AverageSeconds))
		most(&waiting, term(k, api.TermWait, e.WaitSeconds, o.WaitSeconds))
	}
	most(&work, transferred(c, observed.Links, whole))
	if work.term != "" && work.by(whole) >= cause*math.Abs(whole) || waiting.term == "" {
		return work
	}
	return waiting
}

// Expectation is what a report leads to expect of a batch: what its run measured where there was one, else what was predicted.
func Expectation(c *tuner.Candidate) *tuner.Prediction {
	if c.Measured != nil && c.Measured.BatchSeconds > 0 {
		return &c.Measured.Prediction
	}
	return &c.Predicted
}

// Measured puts what a worker says of its last seconds in the terms of a report; nil while it does not train. Time in which the
// center was evaluated or committed is left out. Placement is the device of each stage. Of several groups of pipelines the stages are those of the first.
func Measured(s *api.JobStatus, placement []int, batch int) *tuner.Measurement {
	if s.State != api.Running || s.BatchS == nil || *s.BatchS <= 0 || len(s.StageStatus) == 0 || s.Pipelines < 1 {
		return nil
	}
	raw, n := *s.BatchS, float64(s.Pipelines/max(1, s.Groups))
	stages := slices.DeleteFunc(slices.Clone(s.StageStatus), func(on api.StageStatus) bool { return on.Group > 0 })
	aside := 0.0
	for i := range stages {
		aside = max(aside, stages[i].Evaluate+stages[i].Commit)
	}
	m := &tuner.Measurement{}
	m.Links = linksOf(s, len(stages))
	m.BatchSeconds = raw * max(0, 1-aside)
	if m.BatchSeconds > 0 {
		m.SamplesPerSecond = float64(s.Pipelines*batch) / m.BatchSeconds
	}
	works := map[int]float64{} // by device: seconds of a batch
	for i := range stages {
		t := &stages[i]
		terms := tuner.StageTerms{
			Device: i, ComputeSeconds: t.Busy * raw / n, OptimizerSeconds: t.Optimizer * raw / n, AverageSeconds: t.Average * raw / n,
		}
		if t.Memory != nil {
			terms.Memory = *t.Memory
		}
		if t.Stage < len(placement) {
			terms.Device = placement[t.Stage]
		}
		works[terms.Device] += n * (terms.ComputeSeconds + terms.OptimizerSeconds + terms.AverageSeconds)
		m.Stages = append(m.Stages, terms)
	}
	for i := range m.Stages {
		t := &m.Stages[i]
		t.WaitSeconds = max(0, m.BatchSeconds-works[t.Device])
		if m.BatchSeconds > 0 {
			t.Busy = min(1, works[t.Device]/m.BatchSeconds)
		}
	}
	return m
}

// linksOf is what messages take, as the mean of both ways where both are known; nil where links say nothing.
func linksOf(s *api.JobStatus, stages int) []tuner.LinkTerms {
	all := slices.DeleteFunc(slices.Clone(s.LinkStatus), func(l api.LinkStatus) bool { return l.Group > 0 })
	if len(all) != stages-1 { // some of them are on another node
		return nil
	}
	var links []tuner.LinkTerms
	for _, l := range all {
		terms, ways := tuner.LinkTerms{Bytes: 2 * int64(s.MicroBatches) * l.MessageBytes}, 0
		for _, seconds := range []*float64{l.DownS, l.UpS} {
			if seconds != nil {
				terms.MessageSeconds += *seconds
				ways++
			}
		}
		terms.MessageSeconds /= float64(max(ways, 1))
		links = append(links, terms)
	}
	return links
}
