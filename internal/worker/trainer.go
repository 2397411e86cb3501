package worker

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/feed"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// drainTimeout bounds how long a failing worker waits for the daemon to read why.
const drainTimeout = time.Second

// trainer runs one generation of a job and answers the daemon's requests about it.
type trainer struct {
	assignment control.Assignment
	plan       schedule.Plan
	graphics   cuda.Config
	log        *zap.Logger
	events     *control.EventLog
	progress   *progress
	drifts     driftNotes
	cancel     context.CancelCauseFunc // ends the worker

	group   atomic.Pointer[pipeline.Group] // nil while loading
	budget  atomic.Pointer[job.Budget]     // nil while loading, where the data say what it is
	history *stepHistory                   // set before training begins

	mu   sync.Mutex
	host *host // nil while loading
}

func newTrainer(a control.Assignment, plan schedule.Plan, log *zap.Logger) *trainer {
	t := &trainer{assignment: a, plan: plan, log: log, events: control.NewEventLog(a.Generation)}
	t.budget.Store(a.Spec.Budget)
	t.progress = newProgress(a, plan)
	return t
}

// tau is the batches in a round.
func (t *trainer) tau() uint64 { return uint64(t.assignment.Spec.Job.Averaging.Tau) }

// finalRound is the last round of the budget; further than any while that is not known.
func (t *trainer) finalRound() uint64 {
	if b := t.budget.Load(); b != nil {
		return originOf(&t.assignment).final(b)
	}
	return math.MaxUint64
}

// groupConfig is what every group of a job has in common.
func (h *host) groupConfig(ctx context.Context) (pipeline.Config, error) {
	spec := h.assignment.Spec.Job
	method, err := jobfile.Averaging(&spec.Averaging, int(spec.Pipelines))
	if err != nil {
		return pipeline.Config{}, &permanentError{err}
	}
	rate := learningRate(spec, h.budget)
	if err := rate.Validate(); err != nil {
		return pipeline.Config{}, &permanentError{err}
	}
	c := pipeline.Config{
		Generation: h.assignment.Generation, Plan: h.plan, MicroBatches: int(spec.MicroBatches), Pipelines: int(spec.Pipelines),
		Method: method, ClipNorm: spec.Optimizer.ClipNorm,
		LearningRate: func(step uint64) float32 { return float32(rate.At(h.origin.scheduled(step))) },
		Evaluation:   &pipeline.EvaluationConfig{MicroBatches: h.held().Micros()},
		Attach:       h.attach,
		Queues:       h.queues,
		WhileWaiting: h.whileWaiting,
		Transports:   h.transports,
		Network:      h.network,
	}
	c.Groups, c.Group = everyGroup(&h.assignment), h.assignment.Group
	for i := range h.stages {
		c.Stages = append(c.Stages, h.stageConfig(ctx, &h.stages[i]))
	}
	return c, nil
}

// everyGroup are the pipelines of each group; nil where there is one.
func everyGroup(a *control.Assignment) (all [][]int) {
	for g := range a.Groups {
		of := *a
		of.Group = g
		var group []int
		for p, to := of.Shared(); p < to; p++ {
			group = append(group, p)
		}
		all = append(all, group)
	}
	return all
}

// held is the data of evaluations.
func (h *host) held() evaluation {
	return evaluation{Feed: h.feed, set: h.set, total: h.assignment.Spec.Job.Train.EvalSamples}
}

// newGroup wires the stages that live here.
func (t *trainer) newGroup(ctx context.Context, h *host, reach *links) (*pipeline.Group, error) {
	c, err := h.groupConfig(ctx)
	if err != nil {
		return nil, err
	}
	c.FinalRound, c.CenterOnly, c.Linger = t.finalRound(), t.assignment.Spec.Job.Center.State == "center", true
	c.Evaluation.Due, c.Events, c.NoiseEvery = t.evaluationDue, t.listeners(ctx, h), t.measuresNoise(c.Method.Needs().Gradients)
	if reach != nil {
		c.Connect, c.Publish = reach.connect, reach.publish
	}
	if r := t.assignment.Restore; r != nil {
		c.StartRound = r.Round
		snapshots, err := h.restore(ctx, r)
		if err != nil {
			return nil, err
		}
		for i := range c.Stages {
			c.Stages[i].Restore = snapshots[i]
			bound := elastic.NewDrift(c.Method.Needs().MaxDrift, snapshots[i].Synchronous) // none for a single pipeline, whatever those before it did
			t.progress.synchronize(c.Stages[i].Index, bound.Synchronous())
		}
	}
	return pipeline.New(c)
}

// evaluationDue says which rounds are evaluated: the untrained center, every train.eval_every, and the last.
func (t *trainer) evaluationDue(round uint64) bool {
	every := uint64(t.assignment.Spec.Job.Train.EvalEvery)
	return round == 0 || round == t.final() || every > 0 && round%every == 0
}

// final is the round where training ends: all steps, or where a commit with stop has put it. The group lowers it before
// that round completes, so every stage gets the same answer.
func (t *trainer) final() uint64 {
	if g := t.group.Load(); g != nil {
		return g.Final()
	}
	return t.finalRound()
}

// stageConfig describes one stage.
func (h *host) stageConfig(ctx context.Context, s *hosted) pipeline.StageConfig {
	spec := h.assignment.Spec.Job
	return pipeline.StageConfig{
		Index: s.index,
		Build: func(p int) (stage.Stage, error) { return h.newStage(ctx, s, p) },
		Source: func(p int) pipeline.Source {
			return source{Feed: h.feed, set: h.set, cursor: data.Cursor{
				Pipeline: p, Pipelines: int(spec.Pipelines), Batch: spec.Train.Batch, Base: h.origin.samples, Since: h.origin.step,
			}}
		},
		EvaluationSource: h.held(),
		Layout:           pipeline.Layout(h.model.Layers, s.meta.Layers[0], s.meta.Layers[1], s.shape.Parameters),
	}
}

// listeners are what the group tells of itself.
func (t *trainer) listeners(ctx context.Context, h *host) pipeline.Events {
	return pipeline.Events{
		OnStarted: func() {
			t.progress.training(uint64(t.assignment.Spec.Job.Train.Batch*h.sequence()), h.lags(), time.Now())
			t.events.Append(control.Event{Kind: control.Started})
			t.log.Info("training", zap.Int("stages_here", len(h.stages)), zap.String("device", h.devices[0].about))
		},
		OnStep: func(r pipeline.StepReport) {
			now := time.Now()
			t.history.step(r, t.progress.step(r, now), now)
		},
		OnDrift: t.drifted,
		OnRound: t.progress.round,
		OnRoute: t.routed,
		Trace:   t.progress.span,
		OnEvaluated: func(e pipeline.Evaluation) {
			m, loss := feed.Metrics(h.model.Task, e.Score), e.Score.MeanLoss()
			t.progress.evaluated(e, m)
			t.history.evaluated(e.Round, loss, time.Now())
			t.events.Append(control.Event{Kind: control.Evaluated, Round: e.Round, Loss: &loss})
			t.log.Info("evaluated", zap.Uint64("round", e.Round), zap.Float64("eval_loss", loss), zap.Int("targets", e.Score.Targets),
				zap.Float64p("perplexity", m.Perplexity), zap.Float64p("accuracy", m.Accuracy), zap.Float64p("f1", m.F1))
		},
		OnSnapshot: func(s *pipeline.Snapshot) { t.persist(ctx, h, s) },
		OnFinished: func(round uint64) {
			t.progress.finished(time.Now())
			t.history.file.Sync() // the job may be done before the next flush
			t.sayLag(h)
			t.events.Append(control.Event{Kind: control.Finished, Round: round})
			t.log.Info("the final round is complete", zap.Uint64("round", round))
		},
	}
}

// persist makes a stage's part of a round durable and tells the daemon. A failure that does not pass by itself ends the worker:
// the round is lost, not the job, which goes on from the round before it.
func (t *trainer) persist(ctx context.Context, h *host, s *pipeline.Snapshot) {
	info, err := t.writeWhenPossible(ctx, h, s)
	if err != nil {
		t.cancel(fmt.Errorf("commit round %d: %w", s.Round, err))
		return
	}
	t.history.durable(s.Round, time.Now())
	t.events.Append(control.Event{Kind: control.Shard, Round: s.Round, Shard: &info})
	t.log.Debug("shard is durable", zap.Uint64("round", s.Round), zap.Int("stage", s.Stage), zap.String("digest", info.Digest),
		zap.Int64("bytes", info.Bytes))
}

// describe notes what was opened.
func (t *trainer) describe(h *host) {
	t.budget.Store(&h.budget)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.host = h
	for _, note := range h.set.Notes {
		t.events.Append(control.Event{Kind: control.Note, Text: note})
		t.log.Info(note)
	}
	for _, why := range []string{t.graphics.WithoutBLAS, t.graphics.WithoutDNN} {
		if why != "" {
			t.log.Warn("kernels of our own compute in place of a library of GPUs; the bits of results may differ from those of a run with it", zap.String("found", why))
		}
	}
	t.log.Info("opened", zap.Stringer("data", h.set.Identity), zap.Uint64("samples_in_epoch", h.set.Samples()),
		zap.Int("weights", h.model.Weights()))
}

// Commit implements control.Trainer.
func (t *trainer) Commit(r control.CommitRequest) control.CommitResponse {
	if r.Generation != t.assignment.Generation {
		return control.CommitResponse{Reason: fmt.Sprintf("this worker is of generation %d, not %d", t.assignment.Generation, r.Generation)}
	}
	group := t.group.Load()
	if group == nil {
		return control.CommitResponse{Earliest: 1, Reason: "still loading"}
	}
	earliest, ok := group.Commit(r.Round, r.Stop)
	if !ok {
		return control.CommitResponse{Earliest: earliest, Reason: fmt.Sprintf("a pipeline is past round %d already", r.Round)}
	}
	return control.CommitResponse{Accepted: true, Earliest: earliest}
}

// Abort implements control.Trainer.
func (t *trainer) Abort() { t.cancel(errAborted) }

// Status implements control.Trainer.
func (t *trainer) Status() control.Status {
	out := control.Status{JobID: t.assignment.JobID, Generation: t.assignment.Generation, PID: os.Getpid(), Final: t.finalRound()}
	p := &out.Progress
	if b := t.budget.Load(); b != nil {
		p.Steps, p.BudgetSamples = t.finalRound()*t.tau(), originOf(&t.assignment).seen(t.finalRound())
	}
	now := time.Now()
	t.progress.fill(p, t.assignment.Spec.Job.Train.MaxTime, now)
	out.Held, p.HostBytes = t.progress.whyHeld(), peakRSS()
	if p.State == api.Starting {
		out.Loading = loading()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.group.Load(); g != nil {
		out.Final, out.NextCommit = g.Final(), g.Earliest()
	}
	if t.host == nil {
		return out
	}
	p.Parameters, p.Trained, p.Device = t.host.model.Weights(), t.host.model.Trained(), t.host.devices[0].about
	lags := t.progress.lag(t.host.lags(), now)
	for i := range t.host.stages {
		s := &t.host.stages[i]
		on := t.progress.stage(s.index, s, now)
		if _, emulates := t.host.lag(s); emulates && i < len(lags) {
			on.Lag = &lags[i]
		}
		p.StageStatus = append(p.StageStatus, on)
		if k := s.index - 1; k >= 0 && t.assignment.Stages[k].Node != t.assignment.Node { // its other part is said there
			p.LinkStatus = append(p.LinkStatus, t.progress.link(k, s.shape.InputBytes, now))
		}
		if s.index+1 < len(t.assignment.Stages) {
			l := t.progress.link(s.index, s.shape.OutputBytes, now)
			l.Network = networkOf(t.progress.watchesOf(s.index))
			p.LinkStatus = append(p.LinkStatus, l)
		}
	}
	return out
}
