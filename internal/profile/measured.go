package profile

import (
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/schedule"
)

// measured collects what the runs of one kind say. Times are in seconds.
type measured struct {
	passes             map[schedule.Kind][]map[int][]float64 // by stage, by samples
	optimizer, average [][]float64                           // by stage: of one step or round of one pipeline
	dispatch           []float64
	messages           map[int]map[int][]float64 // by the stage that sends, by bytes
}

func newMeasured(stages int) *measured {
	m := &measured{
		passes:    map[schedule.Kind][]map[int][]float64{},
		optimizer: make([][]float64, stages), average: make([][]float64, stages), messages: map[int]map[int][]float64{},
	}
	for _, w := range []schedule.Kind{schedule.Forward, schedule.Backward, schedule.BackwardInput, schedule.BackwardWeight} {
		m.passes[w] = make([]map[int][]float64, stages)
		for i := range m.passes[w] {
			m.passes[w][i] = map[int][]float64{}
		}
	}
	return m
}

// read takes the spans of a reading.
func (m *measured) read(r reading, result worker.TrialResult) {
	type step struct {
		stage, pipeline int
		number          uint64
	}
	optimizer, average := map[step]float64{}, map[step]float64{}
	alone := withoutRecompute(r, result)
	for _, e := range result.Spans {
		at := step{e.Stage, e.Pipeline, e.Step}
		switch took := alone(e); e.Kind { //nolint:exhaustive // waits are for dispatch and message
		case trace.Compute:
			by := m.passes[e.Work][e.Stage]
			by[r.samples] = append(by[r.samples], took)
		case trace.Optimizer:
			optimizer[at] += took
		case trace.Average:
			at.pipeline = 0
			average[at] += took
		}
	}
	for at, took := range optimizer {
		m.optimizer[at.stage] = append(m.optimizer[at.stage], took)
	}
	for at, took := range average {
		m.average[at.stage] = append(m.average[at.stage], took/float64(r.pipelines))
	}
	m.readDispatch(r, result.Spans)
	m.readMessages(r, result)
}

// total is what a micro-batch takes on all stages, forward and backward, of which there are readings; 0 without.
func (m *measured) total(samples int) float64 {
	sum := 0.0
	for _, w := range []schedule.Kind{schedule.Forward, schedule.Backward} {
		for _, by := range m.passes[w] {
			sum += median(by[samples])
		}
	}
	return sum
}

// takeFaster replaces the passes of a size by those of another measurement where these take less.
func (m *measured) takeFaster(samples int, other *measured) {
	if took := other.total(samples); took == 0 || took >= m.total(samples) {
		return
	}
	for w := range m.passes {
		for stage, by := range other.passes[w] {
			m.passes[w][stage][samples] = by[samples]
		}
	}
}

// readDispatch takes the gaps between ops of one device, or of the rows on one GPU, of which the short ones are those of ops that were ready before the op before
// them ended.
func (m *measured) readDispatch(r reading, spans []trace.Span) {
	last := map[int]time.Duration{} // by device: when its last op ended
	_, of := spec.Memories(&r.trial.Job, len(r.trial.Plan))
	ordered := slices.Clone(spans)
	slices.SortStableFunc(ordered, func(a, b trace.Span) int { return int(a.Start - b.Start) })
	var gaps []float64
	for _, e := range ordered {
		if !e.Kind.OnDevice() {
			continue
		}
		device := of[r.homes[e.Stage]]
		if before, seen := last[device]; seen && e.Kind == trace.Compute && e.Start >= before {
			gaps = append(gaps, (e.Start - before).Seconds())
		}
		last[device] = max(last[device], e.End)
	}
	if len(gaps) > 0 {
		m.dispatch = append(m.dispatch, quantile(gaps, waitingQuantile))
	}
}

// readMessages takes the time from the end of a forward to the moment at which the device after it has what it sent, where that
// device waited for it.
func (m *measured) readMessages(r reading, result worker.TrialResult) {
	type message struct {
		stage, pipeline, micro int
		step                   uint64
	}
	sent := map[message]time.Duration{}
	for _, e := range result.Spans {
		if e.Kind == trace.Compute && e.Work == schedule.Forward {
			sent[message{e.Stage, e.Pipeline, e.Micro, e.Step}] = e.End
		}
	}
	for _, e := range result.Spans {
		if e.Kind != trace.WaitUpstream || e.Work != schedule.Forward || e.Micro < 0 || e.Stage == 0 || r.homes[e.Stage] == r.homes[e.Stage-1] {
			continue
		}
		left, known := sent[message{e.Stage - 1, e.Pipeline, e.Micro, e.Step}]
		if !known || left < e.Start || e.End < left { // it was there before anybody waited
			continue
		}
		link, bytes := e.Stage-1, result.Stages[e.Stage-1].Shape.OutputBytes
		if m.messages[link] == nil {
			m.messages[link] = map[int][]float64{}
		}
		m.messages[link][bytes] = append(m.messages[link][bytes], (e.End - left).Seconds())
	}
}
