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

// warmUp is the batches of each run that are not watched: the second is the first that uses the second of two messages to the
// center, and memory is slow when it is touched first.
const warmUp = 2

// How much a profile measures.
const (
	profileBatches  = 3 // of each run that are watched
	layeredMicros   = 4 // of a run with a stage for each layer, at the middle size
	fewMicros       = 2 // at the others
	waitingQuantile = 0.25
)

// profile measures a target by three kinds of run on its devices:
//
//   - layered, at each size: every layer is a stage of its own, so that each pass of each layer is an event. That says what part
//     of its device's time a layer takes, and what the halves of its backward are. The layers are shared out by their
//     floating-point operations;
//   - merged, at each size: one stage a device, as in training, cut by what layers were seen to take. That says how long all
//     layers of a device take together, which is less than the sum of the parts: they share buffers, and what one leaves in the
//     caches the next one finds;
//   - crowded, at the middle size: merged with two pipelines, which average, and take caches and memory bandwidth from each other.
func (s *Session) profile(ctx context.Context, space *tuner.Space, target tuner.Target, notes *[]string) (*tuner.Profile, error) {
	p := s.subject.skeleton(target)
	m := &measurement{
		profile: p, layers: newMeasured(len(p.Layers)), stages: newMeasured(target.Stages), crowded: newMeasured(target.Stages),
	}
	var err error
	if m.shares, err = s.subject.shareOut(target); err != nil {
		return nil, err
	}
	sizes := s.subject.sizes(*space)
	m.middle = sizes[len(sizes)/2]
	for _, samples := range sizes {
		if err := s.read(ctx, m, s.subject.layered(target, m.shares, samples, samples == m.middle), notes); err != nil {
			return nil, err
		}
	}
	m.homes = m.shares
	if m.shares, err = m.cut(); err != nil {
		return nil, err
	}
	pipelines, several := 1, s.subject.several(target)
	if s.config.Request.Job.Pipelines > 1 && several {
		pipelines = 2 // all along: the job has no use for one
	}
	for _, samples := range sizes {
		if err := s.read(ctx, m, s.subject.merged(target, m.shares, samples, pipelines), notes); err != nil {
			return nil, err
		}
	}
	if pipelines == 1 && several {
		r := s.subject.merged(target, m.shares, m.middle, 2)
		r.kind = crowded
		if err := s.read(ctx, m, r, notes); err != nil {
			return nil, err
		}
	}
	if err := m.fit(); err != nil {
		return nil, err
	}
	return p, p.Validate()
}

// read runs one reading. One that fails, since it is too large for a device, for example, becomes a note where others of its kind
// are there already.
func (s *Session) read(ctx context.Context, m *measurement, r reading, notes *[]string) error {
	s.step("measure %s on %d devices: micro-batches of %d, %s", r.kind, r.trial.Job.Stages, r.samples, pipelinesText(r.pipelines))
	result, err := s.bench.Run(ctx, r.trial)
	into := map[kind]*measured{layered: m.layers, merged: m.stages, crowded: m.crowded}[r.kind]
	if err != nil {
		err = fmt.Errorf("measure micro-batches of %d samples with %s: %w", r.samples, pipelinesText(r.pipelines), err)
		if ctx.Err() == nil && (r.kind == crowded || len(into.passes[trace.Forward][0]) > 0) {
			*notes = append(*notes, err.Error())
			return nil
		}
		return err
	}
	into.read(r, result)
	if r.kind == merged {
		m.profile.Samples = append(m.profile.Samples, r.samples)
	}
	for d := range m.profile.Devices {
		m.profile.Devices[d].Name = result.Devices[d].About
	}
	return nil
}

func pipelinesText(n int) string {
	if n == 1 {
		return "1 pipeline"
	}
	return fmt.Sprintf("%d pipelines", n)
}

// shareOut gives each device of a target a run of layers, by their floating-point operations.
func (s *subject) shareOut(target tuner.Target) ([]stage.Range, error) {
	return stage.Split(s.model.Costs(s.size(1)), target.Stages)
}

// kind is what a run of a profile is for.
type kind string

const (
	layered kind = "layers"
	merged  kind = "stages"
	crowded kind = "stages that share devices"
)

// reading is one run of a profile.
type reading struct {
	kind      kind
	samples   int
	pipelines int
	homes     []int // by stage: its device
	trial     worker.TrialConfig
}

// layered lays out a run in which each layer is a stage. At the middle size there is more to learn from it.
func (s *subject) layered(target tuner.Target, shares []stage.Range, samples int, middle bool) reading {
	micros := max(fewMicros, target.Stages)
	if middle {
		micros = max(layeredMicros, target.Stages)
	}
	r := s.reading(layered, target, samples, 1, micros)
	r.trial.Plan = profilePlan(shares, micros)
	for d, share := range shares {
		for i := share.From; i < share.To; i++ {
			r.homes = append(r.homes, d)
			r.trial.Split = append(r.trial.Split, [2]int{i, i + 1})
		}
	}
	return r
}

// merged lays out a run as training is, by 1f1b, with whole batches of the job.
func (s *subject) merged(target tuner.Target, shares []stage.Range, samples, pipelines int) reading {
	micros := s.request.Job.Train.Batch / samples
	r := s.reading(merged, target, samples, pipelines, micros)
	plan, _, err := schedule.Generate("1f1b", schedule.Request{Stages: target.Stages, MicroBatches: micros})
	if err != nil {
		panic(fmt.Sprintf("1f1b of %d stages and %d micro-batches: %v", target.Stages, micros, err)) // it has a plan for any
	}
	r.trial.Plan = plan
	for d, share := range shares {
		r.homes = append(r.homes, d)
		r.trial.Split = append(r.trial.Split, [2]int{share.From, share.To})
	}
	return r
}

// reading is what the kinds of run have in common.
func (s *subject) reading(k kind, target tuner.Target, samples, pipelines, micros int) reading {
	j := *resolved(&s.request.Job, target, pipelines, micros)
	j.Train.Batch, j.Recompute = samples*micros, []string{string(stage.RecomputeNone)}
	return reading{kind: k, samples: samples, pipelines: pipelines, trial: worker.TrialConfig{
		Job: j, Cores: s.request.Cores, WarmUp: warmUp, Batches: profileBatches,
	}}
}

// several reports whether a second pipeline is possible: the job allows it, and it takes no more than half of the memory.
func (s *subject) several(target tuner.Target) bool {
	if s.request.Job.Pipelines == 1 {
		return false
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
	return capacity == 0 || held <= capacity/2
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
// micro-batch before it turns to another. Every other micro-batch has its backward split.
func profilePlan(layers []stage.Range, micros int) schedule.Plan {
	plan := make(schedule.Plan, len(layers))
	for d, run := range layers {
		forward := func(m int) {
			for s := run.From; s < run.To; s++ {
				plan[d] = append(plan[d], schedule.Op{Kind: schedule.Forward, Stage: s, Micro: m})
			}
		}
		backward := func(m int) {
			for s := run.To - 1; s >= run.From; s-- {
				if m%2 == 1 {
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

// measured collects what the runs of one kind say. Times are in seconds.
type measured struct {
	passes             map[trace.Work][]map[int][]float64 // by stage, by samples
	optimizer, average [][]float64                        // by stage: of one step or round of one pipeline
	handOvers          []float64
	messages           map[int]map[int][]float64 // by the stage that sends, by bytes
}

func newMeasured(stages int) *measured {
	m := &measured{
		passes:    map[trace.Work][]map[int][]float64{},
		optimizer: make([][]float64, stages), average: make([][]float64, stages), messages: map[int]map[int][]float64{},
	}
	for _, w := range []trace.Work{trace.Forward, trace.Backward, trace.BackwardInput, trace.BackwardWeight} {
		m.passes[w] = make([]map[int][]float64, stages)
		for i := range m.passes[w] {
			m.passes[w][i] = map[int][]float64{}
		}
	}
	return m
}

// read takes the events of a reading.
func (m *measured) read(r reading, result worker.TrialResult) {
	type step struct {
		stage, pipeline int
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
		m.optimizer[at.stage] = append(m.optimizer[at.stage], took)
	}
	for at, took := range average {
		m.average[at.stage] = append(m.average[at.stage], took/float64(r.pipelines))
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
		link, bytes := e.Stage-1, result.Stages[e.Stage-1].Shape.OutputBytes
		if m.messages[link] == nil {
			m.messages[link] = map[int][]float64{}
		}
		m.messages[link][bytes] = append(m.messages[link][bytes], (e.End - left).Seconds())
	}
}

// measurement is what the runs of a target say, on the way to its profile.
type measurement struct {
	profile *tuner.Profile
	middle  int           // samples
	homes   []stage.Range // by device: the layers of layered runs
	shares  []stage.Range // by device: the layers of the others
	layers  *measured     // by layer
	stages  *measured     // by device
	crowded *measured     // by device
}

// slowness of the device that measured a layer by itself.
func (m *measurement) slowness(layer int) float64 {
	for d, run := range m.homes {
		if layer < run.To {
			return m.profile.Devices[d].Slowness
		}
	}
	return 1
}

// alone is what one pass of a layer takes by itself, on a device of speed 1; of a size that was not measured, as at the middle one.
func (m *measurement) alone(w trace.Work, layer, samples int) float64 {
	times := m.layers.passes[w][layer][samples]
	if len(times) == 0 {
		times = m.layers.passes[w][layer][m.middle]
	}
	return median(times) / m.slowness(layer)
}

// cut is the partition by what layers take by themselves.
func (m *measurement) cut() ([]stage.Range, error) {
	sums := []float64{0}
	for i := range m.profile.Layers {
		sums = append(sums, sums[i]+m.alone(trace.Forward, i, m.middle)+m.alone(trace.Backward, i, m.middle))
	}
	ranges, err := tuner.Partition(tuner.Chain{
		Layers: len(m.profile.Layers), Stages: len(m.homes),
		Cost: func(s, from, to int) float64 { return max(0, sums[to]-sums[from]) * m.profile.Devices[s].Slowness },
	})
	var shares []stage.Range
	for _, r := range ranges {
		shares = append(shares, stage.Range{From: r[0], To: r[1]})
	}
	return shares, err
}

// fit fills the profile.
func (m *measurement) fit() error {
	p := m.profile
	for d := range m.shares {
		if err := m.fitDevice(d); err != nil {
			return fmt.Errorf("device %d: %w", d, err)
		}
		if d < len(p.Links) {
			p.Links[d] = fitLink(m.stages.messages[d])
		}
	}
	p.HandOver = median(m.stages.handOvers)
	p.Crowding, p.OptimizerCrowding = crowding(m.stages, m.crowded)
	return nil
}

// fitDevice gives the layers of one device their parts of its time, size by size.
func (m *measurement) fitDevice(d int) error {
	p, share := m.profile, m.shares[d]
	slow := p.Devices[d].Slowness
	for _, w := range []trace.Work{trace.Forward, trace.Backward} {
		whole, err := tuner.FitCurve(m.stages.passes[w][d])
		if err != nil {
			return err
		}
		for i := share.From; i < share.To; i++ {
			curve := tuner.Curve{Samples: whole.Samples}
			for j, samples := range whole.Samples {
				sum := 0.0
				for other := share.From; other < share.To; other++ {
					sum += m.alone(w, other, samples)
				}
				curve.Values = append(curve.Values, whole.Values[j]*part(m.alone(w, i, samples), sum)/slow)
			}
			if w == trace.Forward {
				p.Layers[i].Forward = curve
			} else {
				p.Layers[i].Backward = curve
			}
		}
	}
	average := median(m.crowded.average[d])
	if average == 0 { // measured with several pipelines all along; or not at all: like the optimizer it reads and writes a few vectors
		average = max(median(m.stages.average[d]), median(m.stages.optimizer[d]))
	}
	steps, parameters := 0.0, 0.0
	for i := share.From; i < share.To; i++ {
		steps += median(m.layers.optimizer[i])
		parameters += float64(p.Layers[i].Parameters)
	}
	for i := share.From; i < share.To; i++ {
		l, backward := &p.Layers[i], m.alone(trace.Backward, i, m.middle)
		l.BackwardInput = scale(l.Backward, part(m.alone(trace.BackwardInput, i, m.middle), backward))
		l.BackwardWeight = scale(l.Backward, part(m.alone(trace.BackwardWeight, i, m.middle), backward))
		l.Optimizer = median(m.stages.optimizer[d]) * part(median(m.layers.optimizer[i]), steps) / slow
		l.Average = average * part(float64(l.Parameters), parameters) / slow
	}
	return nil
}

// part is a/b; 0 of nothing.
func part(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// crowding is how many times as long passes, and optimizer steps, take when pipelines share the devices: of all stages together,
// at the size that was measured both ways. 1 where it was not, and where noise makes it less.
func crowding(alone, together *measured) (passes, optimizer float64) {
	var one, several, steps, crowdedSteps float64
	for i := range alone.optimizer {
		steps += median(alone.optimizer[i])
		crowdedSteps += median(together.optimizer[i])
		for _, w := range []trace.Work{trace.Forward, trace.Backward} {
			for samples, times := range together.passes[w][i] {
				if before := alone.passes[w][i][samples]; len(before) > 0 {
					one += median(before)
					several += median(times)
				}
			}
		}
	}
	return ratio(several, one), ratio(crowdedSteps, steps)
}

// ratio is a/b, but at least 1; 1 where one of them is not known.
func ratio(a, b float64) float64 {
	if a <= 0 || b <= 0 {
		return 1
	}
	return max(1, a/b)
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
