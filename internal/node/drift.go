package node

import (
	"fmt"
	"math"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/tuner"
)

// The rules of drift, beside Config.DriftHold and the bound that a report says.
const (
	driftReturn = 0.5 // of the bound: within this, a batch time is back
	// driftCause is the share of a drift that one term of work must explain to be named. Else waiting is, which follows from
	// work elsewhere, from links, or from others on the machine.
	driftCause = 0.25
)

// driftWatch holds a job's batch times against their prediction. It is a state machine without a clock.
type driftWatch struct {
	hold  time.Duration
	now   *api.Drift
	turns time.Time // since when observations have spoken against now; zero: they do not
}

// see takes an observation. It reports whether the job has begun to drift, or has returned.
func (d *driftWatch) see(at time.Time, expected *tuner.Prediction, observed *tuner.Measurement, pipelines int, bound float64) bool {
	if expected.BatchSeconds <= 0 || observed.BatchSeconds <= 0 || bound <= 0 {
		return false
	}
	relative := observed.BatchSeconds/expected.BatchSeconds - 1
	turned := math.Abs(relative) > bound
	if d.now != nil {
		turned = math.Abs(relative) < driftReturn*bound
	}
	switch {
	case !turned:
		d.turns = time.Time{}
		if d.now != nil {
			d.now = driftOf(d.now.Since, expected, observed, pipelines)
		}
		return false
	case d.turns.IsZero():
		d.turns = at
	}
	if at.Sub(d.turns) < d.hold {
		return false
	}
	if d.now == nil {
		d.now = driftOf(d.turns, expected, observed, pipelines)
	} else {
		d.now = nil
	}
	d.turns = time.Time{}
	return true
}

// driftOf says what moved.
func driftOf(since time.Time, expected *tuner.Prediction, observed *tuner.Measurement, pipelines int) *api.Drift {
	d := &api.Drift{
		Since: since.UTC(), PredictedSeconds: expected.BatchSeconds, ObservedSeconds: observed.BatchSeconds,
		Relative: observed.BatchSeconds/expected.BatchSeconds - 1,
	}
	moved := movedMost(expected.Stages, observed.Stages, pipelines, observed.BatchSeconds-expected.BatchSeconds)
	d.Stage, d.Term, d.TermPredicted, d.TermObserved = moved.stage, moved.term, moved.expected, moved.observed
	direction := "longer"
	if d.Relative < 0 {
		direction = "shorter"
	}
	d.Text = fmt.Sprintf("a batch takes %s, %.0f%% %s than the expected %s", roundTime(d.ObservedSeconds), 100*math.Abs(d.Relative), direction,
		roundTime(d.PredictedSeconds))
	if d.Term != "" {
		d.Text += fmt.Sprintf("; most of that is %s of stage %d, %s instead of %s", d.Term, d.Stage, roundTime(d.TermObserved), roundTime(d.TermPredicted))
	}
	return d
}

// move is a term of a stage's time that differs from what was expected, in seconds of a batch of all pipelines.
type move struct {
	stage              int
	term               api.Term
	expected, observed float64
}

// by is how far it moved in the direction of the whole.
func (m move) by(whole float64) float64 { return math.Copysign(1, whole) * (m.observed - m.expected) }

// movedMost finds the term of work that moved most, or where none explains the whole, the waiting that did.
func movedMost(expected, observed []tuner.StageTerms, pipelines int, whole float64) move {
	var work, waiting move
	n := float64(max(pipelines, 1))
	for k := range min(len(expected), len(observed)) {
		e, o := expected[k], observed[k]
		for _, m := range []move{
			{k, api.TermCompute, n * e.ComputeSeconds, n * o.ComputeSeconds},
			{k, api.TermOptimizer, n * e.OptimizerSeconds, n * o.OptimizerSeconds},
			{k, api.TermAverage, n * e.AverageSeconds, n * o.AverageSeconds},
		} {
			if m.by(whole) > work.by(whole) {
				work = m
			}
		}
		if m := (move{k, api.TermWait, e.WaitSeconds, o.WaitSeconds}); m.by(whole) > waiting.by(whole) {
			waiting = m
		}
	}
	if work.term != "" && work.by(whole) >= driftCause*math.Abs(whole) || waiting.term == "" {
		return work
	}
	return waiting
}

// roundTime prints seconds to three digits.
func roundTime(seconds float64) string {
	switch {
	case seconds < 1e-9: // what rounding leaves of nothing
		return "0s"
	case seconds < 1e-3:
		return fmt.Sprintf("%.3gus", seconds*1e6)
	case seconds < 1:
		return fmt.Sprintf("%.3gms", seconds*1e3)
	}
	return fmt.Sprintf("%.3gs", seconds)
}

// expectation is what a report leads to expect of a batch: what its run measured where there was one, else what was predicted.
func expectation(c *tuner.Candidate) *tuner.Prediction {
	if c.Measured != nil && c.Measured.BatchSeconds > 0 {
		return &c.Measured.Prediction
	}
	return &c.Predicted
}

// measured puts what a worker says of its last seconds in the terms of a report; nil while it does not train. Time in which the
// center was evaluated or committed is left out. Placement is the device of each stage.
func measured(s *api.JobStatus, placement []int, batch int) *tuner.Measurement {
	if s.State != api.Running || s.BatchS == nil || *s.BatchS <= 0 || len(s.StageStatus) == 0 || s.Pipelines < 1 {
		return nil
	}
	raw, n := *s.BatchS, float64(s.Pipelines)
	aside := 0.0
	for i := range s.StageStatus {
		aside = max(aside, s.StageStatus[i].Evaluate+s.StageStatus[i].Commit)
	}
	m := &tuner.Measurement{}
	m.BatchSeconds = raw * max(0, 1-aside)
	if m.BatchSeconds > 0 {
		m.SamplesPerSecond = n * float64(batch) / m.BatchSeconds
	}
	works := map[int]float64{} // by device: seconds of a batch
	for i := range s.StageStatus {
		t := &s.StageStatus[i]
		terms := tuner.StageTerms{
			Device: i, ComputeSeconds: t.Busy * raw / n, OptimizerSeconds: t.Optimizer * raw / n, AverageSeconds: t.Average * raw / n,
			Memory: tuner.Memory{Activations: t.MemoryBytes},
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
