package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
)

// Config describes the part of a job that one process runs. All processes of a generation have the same, but for Stages,
// Connect and Events.
type Config struct {
	// Generation of the job's placement: frames of another one are refused.
	Generation uint64
	// Plan is the order of work of one batch, or of several batches of a round that it runs on across (schedule.Plan.Batches), and so is run as
	// often as a round has room for it. It must pass schedule.Check; New checks it again.
	Plan schedule.Plan
	// MicroBatches in a batch, M. All have the same size.
	MicroBatches int
	// Pipelines is N. All start with the same weights.
	Pipelines int
	// Groups says which pipelines share devices: [[0 1] [2 3]] trains 0 and 1 on one set of devices, in processes of their own, and 2 and
	// 3 on another. Every process keeps the center of its stages. Each segment of it (elastic.Segment) is summed by one group, in the order of the pipelines, for all,
	// so all copies of the center have the same bits. Nil: all pipelines are one group.
	Groups [][]int
	// SegmentElements is how many elements of a stage travel together between groups, at most; 0: elastic.SegmentElements.
	SegmentElements int
	// Group is the one that trains here.
	Group int
	// Method averages them; its Config's Tau is the batches in a round.
	Method elastic.Method
	// ClipNorm is the largest global gradient norm; gradients beyond it are scaled down to it. 0 does not clip, and saves
	// the exchange of the norm; each stage then looks for gradients that are not finite by itself.
	ClipNorm float64
	// NoiseEvery is the number of steps between two in which each pipeline reports the squares of its gradients (StepReport.Squares); 0: it never does. It must be 0 where NoiseProblem says
	// that the plan cannot do so.
	NoiseEvery uint64
	// LearningRate of a step, after the schedule.
	LearningRate func(step uint64) float32
	// StartRound is the round that training starts from: 0, or that of StageConfig.Restore. Rounds count from 1, steps
	// from 0; step s belongs to round s/Tau + 1.
	StartRound uint64
	// FinalRound ends training. Commit with stop lowers it.
	FinalRound uint64
	// Stages that live in this process, at least one. Those of one row of the plan share a device, and are all here or
	// none of them.
	Stages []StageConfig
	// Attach, unless nil, runs once for each device here, a row of the plan, on its executor's thread and before anything else:
	// device.Threaded.Attach.
	Attach func(device int) error
	// Queues, unless nil, are the queues of a device here, a row of the plan; nil of a device that has one. Those behind queue 0 work for
	// the pipelines, in turn.
	Queues func(device int) *device.Queues
	// WhileWaiting, unless nil, has a device here, a row of the plan, call f while it waits for the end of a pass, on its executor's thread: device.Waiter.
	WhileWaiting func(device int, f func())
	// Transports opens the ways to copy boundaries of so many bytes from the memory of a device here to that of another, rows of the plan. It is asked
	// about stages that have memory for copies (stage.Buffers), and not needed without any. The group takes the fastest, falls back to
	// the first that works, and closes them.
	Transports func(from, to, bytes int) []Transport
	// Connect makes this process's end of a link whose other stage lives elsewhere. upper says that this end is the stage
	// nearer the output: by convention it listens, and the other dials. Nil when all stages are here. The ends must obey
	// wire.End, and belong to the group.
	Connect func(ctx context.Context, l wire.Link, upper bool, s wire.Spec) (wire.End, error)
	// Publish makes this process's end of a link that carries a pipeline's messages of one stage, which is both ends' stage, to the process of
	// another group. It dials; there Connect listens, as the upper stage. Not needed with one group.
	Publish func(ctx context.Context, l wire.Link, group int, s wire.Spec) (wire.End, error)
	// Network, unless nil, has the lines that frames pass between devices, by their rows of the plan. It is the caller's, to close
	// after Run.
	Network *wire.Network
	// Evaluation, unless nil, measures the center on held-out data.
	Evaluation *EvaluationConfig
	// CenterOnly leaves the pipelines' weights and optimizer state out of snapshots.
	CenterOnly bool
	// Linger keeps a group that has trained its final round alive to snapshot it, until the context ends. Run then returns
	// nil. Otherwise Run returns when training is over.
	Linger bool
	// Events tell what happens.
	Events Events
}

// StageConfig is one stage in this process, of all pipelines.
type StageConfig struct {
	// Index of the stage, 0-based.
	Index int
	// Build makes the stage of one pipeline. It runs on the executor. The group closes it.
	Build func(pipeline int) (stage.Stage, error)
	// Source gives a pipeline's data; only the first and the last stage need one.
	Source func(pipeline int) Source
	// EvaluationSource gives held-out data; only with Evaluation, and only the first and the last stage need one.
	EvaluationSource Source
	// Layout is what lies where in the stage's flat vector, for methods that treat layers differently. Nil: it is one tensor of the first layer.
	Layout elastic.Layout
	// Restore, unless nil, is where the stage resumes: vectors as long as its own, as many as its optimizer and the method have.
	Restore *Snapshot
}

// Source fills the buffers of micro-batches. It is called from one goroutine at a time, ahead of the work, in order.
type Source interface {
	// Fill writes the input (on the first stage, else nil) and the labels (on the last, else nil) of a micro-batch. For
	// evaluation step is the round that is evaluated.
	Fill(step uint64, micro int, input, labels []byte) error
}

// EvaluationConfig says when and on how much the center is evaluated.
type EvaluationConfig struct {
	// Due reports whether the center of a round is evaluated. It is asked about StartRound before training, and about
	// each round when it completes. It must give the same answer in every process.
	Due func(round uint64) bool
	// MicroBatches of held-out data, of the size of training's.
	MicroBatches int
}

// Events tell what happens in a group. A nil func is not called. They run on goroutines of the group, concurrently, and hold up
// the one that calls: all but OnSnapshot must return at once. They must not wait for the group to end.
type Events struct {
	// OnStarted: all stages are built, links are up, training begins.
	OnStarted func()
	// OnStep: a pipeline has applied the update of a step. Only where the last stage lives.
	OnStep func(StepReport)
	// OnDrift: pipelines of a stage were farther from its center than is allowed, and its rounds are synchronous from the next one on, or no longer.
	OnDrift func(DriftReport)
	// OnRound: a stage's shard of the center has completed a round.
	OnRound func(stage int, round uint64)
	// OnEvaluated: the center of a round was evaluated. Only where the last stage lives.
	OnEvaluated func(Evaluation)
	// OnSnapshot takes one stage's part of a committed round. It runs while training goes on, one call at a time for each stage, and
	// may take its time: to write a file and sync it. The snapshot's memory is the group's again when it returns.
	OnSnapshot func(*Snapshot)
	// OnFinished: the final round is complete in all stages here, and its evaluation is done.
	OnFinished func(round uint64)
	// OnRoute: copies between the memory of two devices go by a transport from now on. Also when one has failed.
	OnRoute func(RouteReport)
	// Trace hears of every span of time.
	Trace trace.Listener
}

// StepReport is the outcome of one step of one pipeline.
type StepReport struct {
	Pipeline     int
	Step         uint64
	Loss         float64 // mean over the batch, nats per target
	GradientNorm float64 // before clipping; 0 without clipping
	LearningRate float32
	Squares      *Squares // nil but in every NoiseEvery-th step
}

// Evaluation is how the center does on held-out data.
type Evaluation struct {
	Round uint64
	Score stage.Score // over all micro-batches
}

// Validate reports the first setting that no group can run with.
func (c *Config) Validate() error {
	if err := schedule.Check(c.Plan, c.MicroBatches); err != nil {
		return err
	}
	stages := c.Plan.Stages()
	across := c.across()
	switch {
	case c.Method.Config().Tau%across != 0:
		return fmt.Errorf("the plan runs on across %d batches, and a round has %d: stages agree after them alone; use a plan of as many batches as divide a round",
			across, c.Method.Config().Tau)
	case c.Plan.Updates()%across != 0:
		return fmt.Errorf("the plan takes %d optimizer steps in %d batches: want as many in each", c.Plan.Updates(), across)
	case c.Method.Config().Pipelines != c.Pipelines:
		return fmt.Errorf("averaging is made for %d pipelines, the group has %d", c.Method.Config().Pipelines, c.Pipelines)
	case !(c.ClipNorm >= 0): // also refuses NaN
		return fmt.Errorf("clip norm is %v: 0 (no clipping) or more", c.ClipNorm)
	case c.ClipNorm > 0 && c.Plan.Updates() > 0:
		return fmt.Errorf("clip norm is %v: the plan takes optimizer steps inside of a batch, and no stage waits there for the norm "+
			"of the others; use 0, or a plan without updates", c.ClipNorm)
	case c.NoiseEvery > 0 && NoiseProblem(c.Plan, c.MicroBatches) != "":
		return fmt.Errorf("the noise of gradients is to be measured every %d steps, and %s: use 0", c.NoiseEvery, NoiseProblem(c.Plan, c.MicroBatches))
	case c.Plan.Updates() > 0 && c.Method.Needs().Gradients:
		return errors.New("averaging exchanges the gradients of a batch, and the plan takes optimizer steps inside of it: use a method that averages updates, or a plan without them")
	case c.Group < 0 || c.Group >= len(c.groups()) || !slices.Equal(slices.Sorted(slices.Values(slices.Concat(c.groups()...))), everyPipeline(c.Pipelines)):
		return fmt.Errorf("group %d of %v: every one of %d pipelines must be in one group, and the group must be one of them", c.Group, c.Groups, c.Pipelines)
	case len(c.groups()) > 1 && (c.Publish == nil || c.Connect == nil):
		return errors.New("several groups of pipelines and no Publish or no Connect: the others cannot be reached")
	case len(c.Stages) == 0 || len(c.Stages) < stages && c.Connect == nil:
		return fmt.Errorf("pipeline group: %d of %d stages live here and Connect is nil: the others cannot be reached", len(c.Stages), stages)
	}
	placement := c.Plan.Placement()
	here := func(stage int) bool {
		return slices.ContainsFunc(c.Stages, func(s StageConfig) bool { return s.Index == stage })
	}
	for _, s := range c.Stages {
		for other, row := range placement {
			if row == placement[s.Index] && !here(other) {
				return fmt.Errorf("stage %d: it lives on device %d of the plan with stage %d, which is not here", other, row, s.Index)
			}
		}
		switch {
		case s.Restore != nil && s.Restore.Round != c.StartRound:
			return fmt.Errorf("stage %d: restores round %d, training starts from round %d", s.Index, s.Restore.Round, c.StartRound)
		case s.Restore != nil && len(s.Restore.State) != c.Method.Needs().Restores(s.Restore.InFlight):
			return fmt.Errorf("stage %d: round %d holds %d vectors of the averaging method, which needs %d: it is of another method", s.Index, s.Restore.Round,
				len(s.Restore.State), c.Method.Needs().Restores(s.Restore.InFlight))
		case s.Restore == nil && c.StartRound != 0:
			return fmt.Errorf("stage %d: training starts from round %d and there is nothing to restore", s.Index, c.StartRound)
		}
	}
	return nil
}

// tau is the batches in a round.
func (c *Config) tau() uint64 { return uint64(c.Method.Config().Tau) }

// across is how many batches the plan runs on across.
func (c *Config) across() int { return c.Plan.Batches(c.MicroBatches) }

// groups are all groups of pipelines.
func (c *Config) groups() [][]int {
	if c.Groups == nil {
		return [][]int{everyPipeline(c.Pipelines)}
	}
	return c.Groups
}

// feedback reports whether pipelines keep what rounding leaves out of their messages.
func (c *Config) feedback() bool {
	return len(c.groups()) > 1 && c.Method.Config().Precision.Feedback()
}

// here are the pipelines that train in this process.
func (c *Config) here() []int { return c.groups()[c.Group] }

// everyPipeline counts from 0.
func everyPipeline(n int) []int {
	all := make([]int, n)
	for p := range all {
		all[p] = p
	}
	return all
}

// evaluates reports whether the center is evaluated in this process: the copies of all groups are the same.
func (c *Config) evaluates() bool { return c.Evaluation != nil && c.Group == 0 }
