package worker

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/schedule"
)

// window is how far back rates and the training loss look.
const window = 10 * time.Second

// progress is what has happened so far, for status and for the meta of a shard. Its methods may be called concurrently; the
// clock comes with the calls.
type progress struct {
	mu        sync.Mutex
	state     api.State
	began     time.Time     // training of this generation; zero before
	ended     time.Time     // zero while it goes on
	before    time.Duration // training time of earlier generations
	steps     []uint64      // steps done, by pipeline that trains here
	group     int           // of pipelines
	first     int           // pipeline that trains here
	everyone  uint64        // pipelines of the job, for each that trains here
	rounds    map[int]uint64
	batch     uint64 // samples in a step of a pipeline
	origin    origin
	targets   uint64            // tokens in a step
	losses    []float64         // of the newest steps, oldest first
	last      control.RoundMeta // losses and metrics are the newest; the rest is of the restored round
	rate      *trace.Rate       // of tokens, from when each pipeline had done its first step
	begun     map[int]bool      // pipelines that have done a step
	spans     map[int]*trace.Accumulator
	transfers transfers
	routes    map[way]*api.TransportStatus // between GPUs
	watches   map[int][]*wire.Watch        // of links to other nodes, by lower stage
	held      map[int]string               // by stage: why its shard cannot be written yet
	// synchronous says of which stages here rounds are, because pipelines are too far from the center.
	synchronous map[int]bool
	ends        bool            // the last stage lives here, which knows losses and what is measured of gradients
	unmeasured  string          // why the noise in gradients is not measured here; "": it is
	late        []time.Duration // of each stage here: host.lags when training began
}

// lossSteps is how many steps of each pipeline the training loss is the mean of.
const lossSteps = 10

// newProgress starts where the assignment does.
func newProgress(a control.Assignment, plan schedule.Plan) *progress {
	p := &progress{
		state: api.Starting, origin: originOf(&a), rounds: map[int]uint64{}, batch: uint64(a.Spec.Job.Train.Batch),
		steps: make([]uint64, a.Spec.Job.Shared()), everyone: uint64(max(1, len(a.Groups))), rate: trace.NewRate(window), begun: map[int]bool{}, spans: map[int]*trace.Accumulator{},
		transfers: newTransfers(a, plan), routes: map[way]*api.TransportStatus{}, held: map[int]string{}, synchronous: map[int]bool{},
		watches: map[int][]*wire.Watch{},
	}
	p.first, _ = a.Shared()
	p.unmeasured = noiseProblem(&a, plan)
	p.group = a.Group
	start := uint64(0)
	if r := a.Restore; r != nil {
		start = r.Round
		for i := range p.steps {
			p.steps[i] = p.origin.step
		}
		p.last = control.MetaOf(r)
		p.before = time.Duration(p.last.ElapsedS * float64(time.Second))
	}
	for k, place := range a.Stages {
		if place.Node == a.Node {
			p.ends = k == len(a.Stages)-1
			p.rounds[k] = start
			p.spans[k] = trace.NewAccumulator(window)
		}
	}
	return p
}

// training says that it begins, with so many tokens in a step, and how late the devices have been before.
func (p *progress) training(targets uint64, late []time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.began, p.targets, p.late = api.Running, now, targets, late
}

// step notes a step of a pipeline, and returns the tokens per second over the window; 0 before there is one.
func (p *progress) step(r pipeline.StepReport, now time.Time) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps[r.Pipeline-p.first] = r.Step + 1
	p.noise(&r)
	p.begun[r.Pipeline] = true
	if len(p.begun) == len(p.steps) { // before, the window would be as short as the time between their first steps
		p.rate.Add(now.Sub(trace.Epoch), p.targets)
	}
	p.losses = append(p.losses, r.Loss)
	p.losses = p.losses[max(0, len(p.losses)-lossSteps*len(p.steps)):]
	sum := 0.0
	for _, l := range p.losses {
		sum += l
	}
	mean := sum / float64(len(p.losses))
	p.last.Loss = &mean
	return p.rate.PerSecond(p.until(now))
}

// span takes a span of a stage that lives here. It is called from every executor, and takes only the locks of the stage and of a
// link.
func (p *progress) span(e trace.Span) {
	if a := p.spans[e.Stage]; a != nil {
		a.Add(e)
		p.transfers.span(e)
	}
}

// round notes that a stage's shard has completed a round.
func (p *progress) round(stage int, round uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rounds[stage] = round
}

// evaluated notes how the center does.
func (p *progress) evaluated(e pipeline.Evaluation, m api.Metrics) {
	p.mu.Lock()
	defer p.mu.Unlock()
	loss := e.Score.MeanLoss()
	p.last.EvalLoss, p.last.EvalRound, p.last.Metrics = &loss, e.Round, m
	if e.Round == 0 {
		p.last.InitialLoss = &loss
	}
}

// finished says that the last round is complete.
func (p *progress) finished(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = now
}

// synchronize notes whether the rounds of a stage are synchronous, because pipelines are too far from the center.
func (p *progress) synchronize(stage int, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synchronous[stage] = on
}

// hold notes why a stage's shard cannot be written yet; "" when it can.
func (p *progress) hold(stage int, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if why == "" {
		delete(p.held, stage)
		return
	}
	p.held[stage] = why
}

// whyHeld says what a commit waits for; "" for nothing.
func (p *progress) whyHeld() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, stage := range slices.Sorted(maps.Keys(p.held)) {
		return p.held[stage]
	}
	return ""
}

// failed says that training has failed.
func (p *progress) failed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = api.Failed
}

// elapsed is the training time over all generations. The caller holds mu.
func (p *progress) elapsed(now time.Time) time.Duration {
	switch {
	case p.began.IsZero():
		return p.before
	case !p.ended.IsZero():
		return p.before + p.ended.Sub(p.began)
	}
	return p.before + now.Sub(p.began)
}

// until is the end of the window that rates and fractions look at: now, or when training ended. The caller holds mu.
func (p *progress) until(now time.Time) time.Duration {
	if !p.ended.IsZero() {
		now = p.ended
	}
	return now.Sub(trace.Epoch)
}

// completed is the round that every stage here has completed. The caller holds mu.
func (p *progress) completed() uint64 {
	for _, least := range slices.Sorted(maps.Values(p.rounds)) {
		return least
	}
	return 0
}

// fill writes what is known into a status whose Steps are set; maxTime bounds the time left.
func (p *progress) fill(out *api.JobStatus, maxTime time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out.State = p.state
	out.Round = p.completed()
	steps := make([]uint64, len(p.steps)) // only the last stage tells of steps; the others of rounds
	for i, s := range p.steps {
		steps[i] = max(s, out.Round*p.origin.tau)
	}
	out.Step = slices.Min(steps)
	l := &p.last
	out.Loss, out.EvalLoss, out.EvalRound, out.Metrics, out.InitialLoss = l.Loss, l.EvalLoss, l.EvalRound, l.Metrics, l.InitialLoss
	out.CriticalBatch = p.critical()
	out.TokensPerS = p.rate.PerSecond(p.until(now))
	out.SamplesSeen = p.origin.samples
	for _, s := range steps {
		out.SamplesSeen += (s - p.origin.step) * p.batch * p.everyone // the others are about as far
	}
	if out.TokensPerS > 0 {
		seconds := float64(p.targets) * float64(len(p.steps)) / out.TokensPerS
		out.BatchS = &seconds
	}
	elapsed := p.elapsed(now)
	out.ElapsedS = elapsed.Seconds()
	out.ETAS = p.left(out, maxTime-elapsed, maxTime > 0)
}

// stage says what the device of a stage that lives here did in the window.
func (p *progress) stage(k int, s *hosted, now time.Time) api.StageStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.spans[k].Fractions(p.until(now))
	return api.StageStatus{
		Group: p.group, Stage: k, Device: s.on.name, GPU: s.gpu, Layers: fmt.Sprintf("%d-%d", s.meta.Layers[0], s.meta.Layers[1]-1), Busy: f.Busy,
		WaitUpstream: f.WaitUpstream, WaitDownstream: f.WaitDownstream, Average: f.Average, Optimizer: f.Optimizer,
		Commit: f.Commit, Evaluate: f.Evaluate, MemoryBytes: s.device.now.Load(), Memory: s.memory(len(p.steps)), Synchronous: p.synchronous[k],
	}
}

// lag is by which part of the training time the stages here have been late since it began, given how late they are now; nil before.
func (p *progress) lag(late []time.Duration, now time.Time) (shares []float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	trained := p.elapsed(now) - p.before
	if trained <= 0 {
		return nil
	}
	for i := range p.late {
		shares = append(shares, float64(late[i]-p.late[i])/float64(trained))
	}
	return shares
}

// link says how long messages of so many bytes take between a stage and the one after it, of which one lives here: in the directions whose messages arrive here.
func (p *progress) link(lower, bytes int, now time.Time) api.LinkStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := p.until(now)
	return api.LinkStatus{
		Group: p.group, Link: lower, MessageBytes: int64(bytes),
		DownS: p.transfers[way{lower, down}].seconds(until), UpS: p.transfers[way{lower, up}].seconds(until),
		DownBy: p.routes[way{lower, down}], UpBy: p.routes[way{lower, up}],
	}
}

// left is the time left in seconds; nil while unknown. The caller holds mu.
func (p *progress) left(out *api.JobStatus, untilMax time.Duration, bounded bool) *float64 {
	var left float64
	switch {
	case p.state != api.Running:
		return nil
	case !p.ended.IsZero():
		return &left
	case out.TokensPerS > 0:
		left = float64(out.Steps-out.Step) * float64(p.targets) * float64(len(p.steps)) / out.TokensPerS
	case !bounded:
		return nil
	default:
		left = untilMax.Seconds()
	}
	if bounded {
		left = max(0, min(left, untilMax.Seconds()))
	}
	return &left
}

// meta is what a shard of a round keeps of this.
func (p *progress) meta(round uint64, data string, now time.Time) control.RoundMeta {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.last
	m.ElapsedS, m.DataDigest, m.TargetsPerStep = p.elapsed(now).Seconds(), data, p.targets
	m.SamplesSeen = p.origin.seen(round)
	return m
}
