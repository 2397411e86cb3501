package tune

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/tuner"
)

// How much a profile measures of each size: about three batches' worth of samples, but no fewer and no more batches than this.
const (
	profileBatches  = 3
	fewestBatches   = 3
	mostBatches     = 8
	profileWarmUp   = 1
	fewestMicros    = 4 // per batch, so that whole and split backwards alternate and devices do not wait for each other
	waitingQuantile = 0.25
)

// profile measures a target. Every layer is a stage of its own, so that each pass of each layer is an event; the layers are
// shared out among the devices as in training, so all devices are busy the same way, with the same part of the weights in
// their caches.
func (s *Session) profile(ctx context.Context, space *tuner.Space, target tuner.Target, notes *[]string) (*tuner.Profile, error) {
	p := s.subject.skeleton(target)
	layers, err := s.subject.shareOut(target)
	if err != nil {
		return nil, err
	}
	m := newMeasured(len(p.Layers), len(p.Devices))
	sizes := s.subject.sizes(*space)
	for i, samples := range sizes {
		s.step("measure %d layers on %d devices, micro-batches of %d", len(p.Layers), target.Stages, samples)
		r := s.subject.reading(target, layers, samples, i == len(sizes)/2)
		result, err := s.bench.Run(ctx, r.trial)
		if err != nil {
			if i > 0 && ctx.Err() == nil { // one that is too large for a device, for example: the others remain
				*notes = append(*notes, fmt.Sprintf("micro-batches of %d samples could not be measured: %v", samples, err))
				continue
			}
			return nil, fmt.Errorf("measure micro-batches of %d samples on %d devices: %w", samples, target.Stages, err)
		}
		m.read(r, result)
		p.Samples = append(p.Samples, samples)
		for d := range p.Devices {
			p.Devices[d].Name = result.Devices[d].About
		}
	}
	if err := m.fit(p, s.subject); err != nil {
		return nil, err
	}
	return p, p.Validate()
}

// shareOut gives each device of a target a run of layers, by their floating-point operations.
func (s *subject) shareOut(target tuner.Target) ([]stage.Range, error) {
	return stage.Split(s.model.Costs(s.size(1)), target.Stages)
}

// reading is one run of a profile: all layers, one size of micro-batch.
type reading struct {
	samples   int
	pipelines int
	homes     []int // by layer: its device
	trial     worker.TrialConfig
}

// reading lays out a run. Halves are measured where a schedule may split backwards, and at one size: what a half is of the whole
// changes little with it.
func (s *subject) reading(target tuner.Target, layers []stage.Range, samples int, halves bool) reading {
	r := reading{samples: samples, pipelines: s.profiledPipelines(target)}
	for d, run := range layers {
		for range run.Len() {
			r.homes = append(r.homes, d)
		}
	}
	j := s.request.Job
	micros := max(fewestMicros, target.Stages)
	if 2*samples > j.Train.Batch && !halves {
		micros = max(2, target.Stages/2) // of the largest size a few are enough
	}
	batches := profileBatches * j.Train.Batch / (samples * micros * r.pipelines)
	j = *resolved(&j, target, r.pipelines, micros)
	j.Train.Batch, j.Recompute = samples*micros, []string{string(stage.RecomputeNone)}
	r.trial = worker.TrialConfig{
		Job: j, Plan: profilePlan(layers, micros, halves), Cores: s.request.Cores,
		WarmUp: profileWarmUp, Batches: min(max(batches, fewestBatches), mostBatches),
	}
	for i := range r.homes {
		r.trial.Split = append(r.trial.Split, [2]int{i, i + 1})
	}
	return r
}

// profiledPipelines is 2 where a second pipeline is possible, since it also shows what averaging takes and keeps the devices
// busy; else 1.
func (s *subject) profiledPipelines(target tuner.Target) int {
	if s.request.Job.Pipelines == 1 {
		return 1
	}
	const model = 6 // times the weights: gradients, state of adam, center and messages
	weights := 0
	for _, p := range s.model.Params() {
		weights += 4 * p.Len()
	}
	held, capacity := int64(2*model*weights), s.memory
	if each := s.capacity(0); each > 0 {
		capacity = each * int64(target.Stages)
	}
	if capacity > 0 && held > capacity/2 {
		return 1
	}
	return 2
}

// resolved is the job with every count given.
func resolved(j *job.Job, target tuner.Target, pipelines, micros int) *job.Job {
	out := *j
	out.Stages, out.Pipelines, out.MicroBatches = job.Count(target.Stages), job.Count(pipelines), job.Count(micros)
	out.Devices.CPU.Count = max(out.Devices.CPU.Count, job.Count(target.Stages))
	out.Devices.CPU.Threads = job.Count(max(target.Threads, 1))
	return &out
}

// profilePlan runs every layer as a stage, in the order of 1f1b over the devices: a device goes through all of its layers for one
// micro-batch before it turns to another. With halves every other micro-batch has its backward split.
func profilePlan(layers []stage.Range, micros int, halves bool) schedule.Plan {
	plan := make(schedule.Plan, len(layers))
	for d, run := range layers {
		forward := func(m int) {
			for s := run.From; s < run.To; s++ {
				plan[d] = append(plan[d], schedule.Op{Kind: schedule.Forward, Stage: s, Micro: m})
			}
		}
		backward := func(m int) {
			for s := run.To - 1; s >= run.From; s-- {
				if halves && m%2 == 1 {
					plan[d] = append(plan[d],
						schedule.Op{Kind: schedule.BackwardInput, Stage: s, Micro: m}, schedule.Op{Kind: schedule.BackwardWeight, Stage: s, Micro: m})
					continue
				}
				plan[d] = append(plan[d], schedule.Op{Kind: schedule.Backward, Stage: s, Micro: m})
			}
		}
		ahead := min(micros, len(layers)-d)
		for m := range ahead {
			forward(m)
		}
		for m := range micros {
			backward(m)
			if ahead+m < micros {
				forward(ahead + m)
			}
		}
	}
	return plan
}

// measured collects what the readings of a target say. Times are in seconds.
type measured struct {
	passes             map[trace.Work][]map[int][]float64 // by layer, by samples
	optimizer, average [][]float64                        // by layer: of one step or round of one pipeline
	handOvers          []float64
	messages           []map[int][]float64 // by link, by bytes
}

func newMeasured(layers, devices int) *measured {
	m := &measured{
		passes:    map[trace.Work][]map[int][]float64{},
		optimizer: make([][]float64, layers), average: make([][]float64, layers), messages: make([]map[int][]float64, devices-1),
	}
	for _, w := range []trace.Work{trace.Forward, trace.Backward, trace.BackwardInput, trace.BackwardWeight} {
		m.passes[w] = make([]map[int][]float64, layers)
		for i := range m.passes[w] {
			m.passes[w][i] = map[int][]float64{}
		}
	}
	for i := range m.messages {
		m.messages[i] = map[int][]float64{}
	}
	return m
}

// read takes the events of a reading.
func (m *measured) read(r reading, result worker.TrialResult) {
	type step struct {
		layer, pipeline int
		number          uint64
	}
	optimizer, average := map[step]float64{}, map[step]float64{}
	for _, e := range result.Events {
		at := step{e.Stage, e.Pipeline, e.Step}
		switch took := (e.End - e.Start).Seconds(); e.Kind { //nolint:exhaustive // waits are for handOver and message
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
		m.optimizer[at.layer] = append(m.optimizer[at.layer], took)
	}
	for at, took := range average {
		m.average[at.layer] = append(m.average[at.layer], took/float64(r.pipelines))
	}
	m.readHandOvers(r, result.Events)
	m.readMessages(r, result)
}

// readHandOvers takes the gaps between ops of one device of which the second was there when the first ended: on a device that is
// busy, the short ones.
func (m *measured) readHandOvers(r reading, events []trace.Event) {
	last := map[int]time.Duration{} // by device: when its last op ended
	ordered := slices.Clone(events)
	slices.SortStableFunc(ordered, func(a, b trace.Event) int { return int(a.Start - b.Start) })
	var gaps []float64
	for _, e := range ordered {
		if !e.Kind.OnDevice() {
			continue
		}
		device := r.homes[e.Stage]
		if before, seen := last[device]; seen && e.Kind == trace.Compute && e.Start >= before {
			gaps = append(gaps, (e.Start - before).Seconds())
		}
		last[device] = max(last[device], e.End)
	}
	if len(gaps) > 0 {
		m.handOvers = append(m.handOvers, quantile(gaps, waitingQuantile))
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
	for _, e := range result.Events {
		if e.Kind == trace.Compute && e.Work == trace.Forward {
			sent[message{e.Stage, e.Pipeline, e.Micro, e.Step}] = e.End
		}
	}
	for _, e := range result.Events {
		if e.Kind != trace.WaitUpstream || e.Work != trace.Forward || e.Micro < 0 || e.Stage == 0 || r.homes[e.Stage] == r.homes[e.Stage-1] {
			continue
		}
		left, known := sent[message{e.Stage - 1, e.Pipeline, e.Micro, e.Step}]
		if !known || left < e.Start || e.End < left { // it was there before anybody waited
			continue
		}
		link := r.homes[e.Stage-1]
		bytes := result.Stages[e.Stage-1].Shape.OutputBytes
		m.messages[link][bytes] = append(m.messages[link][bytes], (e.End - left).Seconds())
	}
}

// fit fills a profile.
func (m *measured) fit(p *tuner.Profile, s *subject) error {
	for i := range p.Layers {
		l := &p.Layers[i]
		for _, one := range []struct {
			work  trace.Work
			curve *tuner.Curve
		}{{trace.Forward, &l.Forward}, {trace.Backward, &l.Backward}} {
			curve, err := tuner.FitCurve(m.passes[one.work][i])
			if err != nil {
				return fmt.Errorf("layer %s: %w", l.Name, err)
			}
			*one.curve = curve
		}
		l.BackwardInput = scale(l.Backward, m.half(trace.BackwardInput, i, l.Backward))
		l.BackwardWeight = scale(l.Backward, m.half(trace.BackwardWeight, i, l.Backward))
		l.Optimizer = median(m.optimizer[i])
		l.Average = median(m.average[i])
		if len(m.average[i]) == 0 {
			l.Average = l.Optimizer // unmeasured, with one pipeline: like the optimizer it reads and writes a few vectors once
		}
	}
	p.HandOver = median(m.handOvers)
	for d := range p.Links {
		p.Links[d] = fitLink(m.messages[d])
	}
	return nil
}

// half is what a half of layer i's backward takes of the whole, where it was measured; 1/2 where it was not.
func (m *measured) half(w trace.Work, i int, whole tuner.Curve) float64 {
	for samples, times := range m.passes[w][i] {
		if total := whole.At(samples); len(times) > 0 && total > 0 {
			return median(times) / total
		}
	}
	return 0.5
}

func scale(c tuner.Curve, by float64) tuner.Curve {
	out := tuner.Curve{Samples: c.Samples}
	for _, v := range c.Values {
		out.Values = append(out.Values, v*by)
	}
	return out
}

// fitLink is the line through the fastest quarter of messages of each length: the others waited for something else as well.
func fitLink(messages map[int][]float64) tuner.Link {
	c := tuner.Curve{}
	for bytes := range messages {
		c.Samples = append(c.Samples, bytes)
	}
	slices.Sort(c.Samples)
	for _, bytes := range c.Samples {
		c.Values = append(c.Values, quantile(messages[bytes], waitingQuantile))
	}
	if len(c.Samples) == 0 {
		return tuner.Link{}
	}
	if len(c.Samples) == 1 {
		return tuner.Link{LatencySeconds: c.Values[0]}
	}
	t0, t1 := c.Line()
	return tuner.Link{LatencySeconds: t0, SecondsPerByte: t1}
}

// median of values; 0 of none.
func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile is the value that a part q of the values do not exceed; 0 of none. The values keep their order.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
