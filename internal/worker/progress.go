package worker

import (
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/pipeline"
)

// window is how far back rates and the training loss look.
const window = 10 * time.Second

// progress is what has happened so far, for status and for the meta of a shard. Its methods may be called concurrently; the
// clock comes with the calls.
type progress struct {
	mu        sync.Mutex
	state     api.State
	reason    string
	began     time.Time     // training of this generation; zero before
	ended     time.Time     // zero while it goes on
	before    time.Duration // training time of earlier generations
	steps     []uint64      // steps done, by pipeline
	rounds    map[int]uint64
	batch     uint64 // samples in a step
	targets   uint64 // tokens in a step
	recent    []stepped
	loss      *float64
	eval      *float64
	evalRound uint64
	initial   *float64
	rate      float64 // tokens a second when training ended
}

// stepped is a step of some pipeline that was done at a time.
type stepped struct {
	at   time.Time
	loss float64
}

// newProgress starts where the assignment does.
func newProgress(a control.Assignment, meta control.RoundMeta) *progress {
	p := &progress{
		state: api.Starting, reason: "loading", rounds: map[int]uint64{}, batch: uint64(a.Job.Train.Batch),
		steps: make([]uint64, a.Job.Pipelines),
	}
	start := uint64(0)
	if r := a.Restore; r != nil {
		start = r.Round
		for _, c := range r.Cursors {
			p.steps[c.Pipeline] = c.Step
		}
		p.before = time.Duration(meta.ElapsedS * float64(time.Second))
		p.loss, p.eval, p.evalRound, p.initial = meta.Loss, meta.EvalLoss, meta.EvalRound, meta.InitialLoss
	}
	for k, place := range a.Stages {
		if place.Node == a.Node {
			p.rounds[k] = start
		}
	}
	return p
}

// training says that it begins, with so many tokens in a step.
func (p *progress) training(targets uint64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.reason, p.began, p.targets = api.Running, "training", now, targets
}

// step notes a step of a pipeline.
func (p *progress) step(r pipeline.StepReport, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps[r.Pipeline] = r.Step + 1
	p.recent = append(p.recent, stepped{now, r.Loss})
	keep := 2 * len(p.steps) // however slow the steps are
	for len(p.recent) > keep && now.Sub(p.recent[0].at) > window {
		p.recent = p.recent[1:]
	}
	sum := 0.0
	for _, s := range p.recent {
		sum += s.loss
	}
	mean := sum / float64(len(p.recent))
	p.loss = &mean
}

// round notes that a stage's shard has completed a round.
func (p *progress) round(stage int, round uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rounds[stage] = round
}

// evaluated notes the center's loss.
func (p *progress) evaluated(e pipeline.Evaluation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eval, p.evalRound = &e.Loss, e.Round
	if e.Round == 0 {
		p.initial = &e.Loss
	}
}

// finished says that the last round is complete.
func (p *progress) finished(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = p.tokensPerSecond(now)
	p.ended = now
	p.reason = "training has ended; the final round is being committed"
}

// failed says why training ended.
func (p *progress) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.reason = api.Failed, err.Error()
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

// tokensPerSecond is the rate of all pipelines over the window. The caller holds mu.
func (p *progress) tokensPerSecond(now time.Time) float64 {
	switch {
	case !p.ended.IsZero():
		return p.rate
	case len(p.recent) == 0:
		return 0
	}
	// The first step of the window was done when it began; what counts is what came after.
	if span := now.Sub(p.recent[0].at); span > 0 {
		return float64(len(p.recent)-1) * float64(p.targets) / span.Seconds()
	}
	return 0
}

// slowest is the step of the pipeline that is behind the others. The caller holds mu.
func (p *progress) slowest() uint64 {
	least := p.steps[0]
	for _, s := range p.steps {
		least = min(least, s)
	}
	return least
}

// completed is the round that every stage here has completed. The caller holds mu.
func (p *progress) completed() uint64 {
	first, least := true, uint64(0)
	for _, r := range p.rounds {
		if first || r < least {
			first, least = false, r
		}
	}
	return least
}

// fill writes what is known into a status whose Steps are set; maxTime bounds the time left.
func (p *progress) fill(out *api.JobStatus, maxTime time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out.State, out.Reason = p.state, p.reason
	out.Step, out.Round = p.slowest(), p.completed()
	out.Loss, out.EvalLoss, out.EvalRound, out.InitialLoss = p.loss, p.eval, p.evalRound, p.initial
	out.TokensPerS = p.tokensPerSecond(now)
	for _, s := range p.steps {
		out.SamplesSeen += s * p.batch
	}
	elapsed := p.elapsed(now)
	out.ElapsedS = elapsed.Seconds()
	out.ETAS = p.left(out, maxTime-elapsed, maxTime > 0)
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
func (p *progress) meta(round, tau uint64, data string, now time.Time) control.RoundMeta {
	p.mu.Lock()
	defer p.mu.Unlock()
	return control.RoundMeta{
		ElapsedS: p.elapsed(now).Seconds(), Loss: p.loss, EvalLoss: p.eval, EvalRound: p.evalRound, InitialLoss: p.initial,
		SamplesSeen: round * tau * p.batch * uint64(len(p.steps)), DataDigest: data, TargetsPerStep: p.targets,
	}
}
