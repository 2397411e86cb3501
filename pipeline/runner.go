package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// runner trains one stage of one pipeline, batch by batch.
type runner struct {
	stageID
	ends
	ctx        context.Context // of the group's run: bounds a Send, which a checked plan never makes wait
	config     *Config
	gate       *gate
	shard      *shard
	handover   *handover // nil where nothing is handed over within a batch
	feeder     *feeder   // nil between the first and the last stage
	dispatcher *dispatcher
	stage      stage.Stage
	shape      stage.Shape
	ties       []tie
	outputs    *handed // nil where they go through host memory, as do the gradients of inputs
	gradients  *handed
	groups     []int        // the last micro-batch of each optimizer step, ascending
	across     int          // batches that the plan runs on across
	updates    int          // optimizer steps that the plan itself takes in all of them; 0: the runner takes one after the batch
	start      uint64       // the first step
	fresh      uint64       // the step at which the optimizer's state was zero
	done       chan outcome // of each batch of the plan that began; it has room for all

	// The dispatcher's mu guards these.
	active  bool          // ops of the plan are to be given to the device
	awaited bool          // outcomes of its batches are
	begun   time.Duration // when it began
	input   wire.Frame    // for the next op, once arrived
	grad    wire.Frame
	labels  []wire.Frame // of the plan's micro-batches, as far as they have arrived; on the last stage

	// The executor's alone while a batch is in progress. Micro-batches count from the plan's first.
	step     uint64     // of the plan's first batch
	inFlight []inFlight // by micro-batch
	weights  []float32  // of the micro-batches in the mean loss of their optimizer step
	shares   []float64  // of the micro-batches in the mean loss of their batch; on the last stage, as are the two below
	forward  float64    // the share of the forwards since the last optimizer step
	losses   []float64  // by batch: of the optimizer steps inside of it, each with the share of its forwards
}

// run trains until the final round is complete, ctx ends or something fails.
func (r *runner) run(ctx context.Context) error {
	r.ctx = ctx
	r.listen()
	if err := r.do(ctx, r.start, func() error { r.stage.ZeroGradients(); return nil }); err != nil {
		return r.fault(r.start, "start", err)
	}
	if err := r.drain(ctx); err != nil {
		return r.fault(r.start, "gradients in flight", err)
	}
	r.handover.begin()
	for step := r.start; r.gate.begin(step); step += uint64(r.across) { //nolint:gosec // counts from 1
		r.begin(step)
		for i := range uint64(r.across) { //nolint:gosec // as above
			if err := r.batch(ctx, step+i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *runner) fault(step uint64, op string, err error) error {
	if _, known := errors.AsType[*Error](err); known {
		return err
	}
	return &Error{Pipeline: r.pipeline, Stage: r.index, Step: step, Op: op, Err: err}
}

// listen has the links call the dispatcher. It is called once, before the first batch.
func (r *runner) listen() {
	micros := r.across * r.config.MicroBatches
	r.losses = make([]float64, r.across)
	r.inFlight, r.weights, r.shares = make([]inFlight, micros), make([]float32, micros), make([]float64, micros)
	from := 0
	for _, to := range r.groups {
		for i := from; i <= to; i++ {
			r.weights[i] = 1 / float32(to+1-from)
		}
		from = to + 1
	}
	for _, e := range []wire.End{r.up, r.down, r.targets} {
		if e != nil {
			e.OnArrival(r.dispatcher.arrived)
		}
	}
}

// do runs f on the executor, as a part of the optimizer step.
func (r *runner) do(ctx context.Context, step uint64, f func() error) error {
	return r.dispatcher.executor.doOn(ctx, r.dispatcher.queue, r.span(trace.Optimizer, step, -1), f)
}

// batch trains one step of those that have begun: its ops, the update, unless those have taken it, and, at the end of a round, the averaging.
func (r *runner) batch(ctx context.Context, step uint64) error {
	loss, err := r.await(ctx)
	if err != nil {
		return r.fault(step, "batch", err)
	}
	if r.feeder != nil {
		r.feeder.next()
	}
	report := StepReport{Pipeline: r.pipeline, Step: step, LearningRate: r.config.LearningRate(step), Loss: loss}
	if r.updates == 0 {
		if err := r.flush(ctx, &report); err != nil {
			return err
		}
	}
	if r.last() && r.config.Events.OnStep != nil {
		r.config.Events.OnStep(report)
	}
	if (step+1)%r.gate.tau != 0 {
		return nil
	}
	round := (step + 1) / r.gate.tau
	end := func() error { return r.shard.average(ctx, r.stageID, round, nil) }
	if r.shard.needs.Gradients { // they were exchanged before the update
		end = func() error { return r.shard.leave(ctx, r.pipeline, round) }
	}
	if err := end(); err != nil {
		return r.fault(step, fmt.Sprintf("round %d", round), err)
	}
	return nil
}

// flush ends a batch of a plan without updates: the gradients' last touches and the update.
func (r *runner) flush(ctx context.Context, report *StepReport) error {
	own, err := r.finishGradients(ctx, report.Step)
	if err != nil {
		return err
	}
	if r.shard.needs.Gradients {
		if err := r.do(ctx, report.Step, func() error { r.stage.SumTies(); return nil }); err != nil {
			return r.fault(report.Step, "tied gradients", err)
		}
		if err := r.shard.average(ctx, r.stageID, report.Step+1, r.handover); err != nil {
			return r.fault(report.Step, "exchange of gradients", err)
		}
		r.handover.begin()
	}
	scale, clips := float32(1), r.config.ClipNorm > 0
	if clips {
		if scale, err = r.norm(ctx, report); err != nil {
			return r.fault(report.Step, "gradient norm", err)
		}
	}
	err = r.do(ctx, report.Step, func() error {
		if !clips {
			if err := r.readLoss(report); err != nil {
				return err
			}
		}
		return r.updateAfter(report, scale)
	})
	if err != nil {
		return r.fault(report.Step, "optimizer step", err)
	}
	return r.sumUpSquares(ctx, report, own)
}

// updateAfter takes the optimizer step after a batch, where there is a gradient for it. On the executor.
func (r *runner) updateAfter(report *StepReport, scale float32) error {
	sh := r.shard
	h := stage.Hyper{LearningRate: report.LearningRate, GradScale: scale}
	sh.completeReads(r.pipeline)
	delta := sh.delta(r.pipeline, report.Step, true)
	for _, part := range sh.steps(report.Step, r.fresh) {
		h.Step, h.Before, h.Elements = part.updates, report.Step-part.updates, part.elements
		if err := r.stage.Step(h, delta); err != nil {
			return err
		}
	}
	if sh.needs.Predicts {
		h.LearningRate = r.config.LearningRate(report.Step + 1)
		if err := sh.predict(r.pipeline, report.Step, h); err != nil {
			return err
		}
	}
	r.stage.ZeroGradients()
	if sh.needs.Gradients {
		sh.updated(r.pipeline, report.Step+1)
	}
	return nil
}

// updateInside takes an optimizer step that stands in the plan. On the executor.
func (r *runner) updateInside(o *issued) error {
	report := StepReport{Step: o.step}
	if err := r.readLoss(&report); err != nil {
		return err
	}
	r.losses[o.batch], r.forward = r.losses[o.batch]+report.Loss*r.forward, 0
	updates := uint64(r.updates / r.across) //nolint:gosec // of a batch
	h := stage.Hyper{
		Step: (r.step-r.fresh)*updates + uint64(o.update), Before: r.fresh * updates,
		LearningRate: r.config.LearningRate(o.step), GradScale: 1,
		Version: (o.update + 1) % r.updates, Stash: o.stash,
	}
	r.shard.completeReads(r.pipeline)
	if err := r.stage.Step(h, r.shard.delta(r.pipeline, o.step, o.update == 0)); err != nil {
		return err
	}
	r.stage.ZeroGradients()
	return nil
}

// norm finds the batch's loss and its gradient norm over all stages, and returns the factor that clips the gradients.
func (r *runner) norm(ctx context.Context, report *StepReport) (scale float32, err error) {
	sum, err := r.sumSquares(ctx, report.Step, func(sum *float64) error { return r.measure(sum, report) })
	if err != nil {
		return 0, err
	}
	report.GradientNorm = math.Sqrt(sum)
	return stage.ClipFactor(sum, r.config.ClipNorm), nil
}

// sumSquares is the squared gradient norm over all stages, of which add adds this one's, on the executor. The sum runs down the pipeline, stage after stage, so that it has the same bits
// on every split; the total comes back up.
func (r *runner) sumSquares(ctx context.Context, step uint64, add func(sum *float64) error) (sum float64, err error) {
	if !r.first() {
		if sum, err = r.receiveNorm(ctx, r.up, r.index-1, step); err != nil {
			return 0, err
		}
	}
	if err = r.do(ctx, step, func() error { return add(&sum) }); err != nil {
		return 0, err
	}
	if !r.last() {
		if err := r.sendNorm(ctx, r.down, r.index+1, step, sum); err != nil {
			return 0, err
		}
		if sum, err = r.receiveNorm(ctx, r.down, r.index+1, step); err != nil {
			return 0, err
		}
	}
	if !r.first() {
		if err := r.sendNorm(ctx, r.up, r.index-1, step, sum); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// readLoss reads the batch's loss on the last stage. On the executor.
func (r *runner) readLoss(report *StepReport) (err error) {
	if !r.last() {
		return nil
	}
	if report.Loss, err = r.stage.Loss(); err != nil {
		return err
	}
	return finite("loss", r.index, report.Step, report.Loss)
}

// measure reads the loss and adds this stage's squared norm to sum. On the executor.
func (r *runner) measure(sum *float64, report *StepReport) (err error) {
	if err := r.readLoss(report); err != nil {
		return err
	}
	if *sum, err = r.stage.SquaredNorm(*sum); err != nil {
		return err
	}
	return finite("gradient norm", r.index, report.Step, *sum)
}

func (r *runner) sendNorm(ctx context.Context, e wire.End, to int, step uint64, sum float64) error {
	f := e.NewFrame(r.header(wire.Norm, r.index, to, step, -1), 8)
	binary.LittleEndian.PutUint64(f.Payload, math.Float64bits(sum))
	return e.Send(ctx, f)
}

func (r *runner) receiveNorm(ctx context.Context, e wire.End, from int, step uint64) (float64, error) {
	f, err := r.receive(ctx, e, r.header(wire.Norm, from, r.index, step, -1), 8)
	if err != nil {
		return 0, err
	}
	defer f.Release()
	return math.Float64frombits(binary.LittleEndian.Uint64(f.Payload)), nil
}

// receive waits for a frame that is not of a micro-batch.
func (r *runner) receive(ctx context.Context, e wire.End, want wire.Header, bytes int) (wire.Frame, error) {
	span := r.span(trace.WaitUpstream, want.Step, -1)
	if want.From > want.To {
		span.Kind = trace.WaitDownstream
	}
	span.Start = trace.Now()
	f, err := e.Receive(ctx)
	span.End = trace.Now()
	r.dispatcher.trace.Emit(span)
	if err != nil {
		return f, err
	}
	if err := verify(f, want, bytes); err != nil {
		f.Release()
		return f, err
	}
	return f, nil
}

// tie is a tied gradient and its copy in host memory.
type tie struct {
	name     string
	gradient flat.Vector
	host     []float32
}

// exchangeTies adds the gradients of tied parameters on the first and the last stage. Each end sends its own and adds the
// other's: the sum of two floats does not depend on their order, so both get the same bits.
func (r *runner) exchangeTies(ctx context.Context, step uint64) error {
	if r.tie == nil {
		return nil
	}
	other := r.stages - 1 - r.index
	for i := range r.ties {
		t := &r.ties[i]
		if err := r.do(ctx, step, func() error { t.gradient.Read(t.host, 0); return nil }); err != nil {
			return fmt.Errorf("read %s: %w", t.name, err)
		}
		f := r.tie.NewFrame(r.header(wire.Tied, r.index, other, step, i), 4*len(t.host))
		copy(floats(f.Payload), t.host)
		if err := r.tie.Send(ctx, f); err != nil {
			return fmt.Errorf("send %s: %w", t.name, err)
		}
	}
	for i := range r.ties {
		t := &r.ties[i]
		f, err := r.receive(ctx, r.tie, r.header(wire.Tied, other, r.index, step, i), 4*len(t.host))
		if err != nil {
			return fmt.Errorf("receive %s: %w", t.name, err)
		}
		for j, g := range floats(f.Payload) {
			t.host[j] += g
		}
		f.Release()
		if err := r.do(ctx, step, func() error { t.gradient.Write(t.host, 0); return nil }); err != nil {
			return fmt.Errorf("write %s: %w", t.name, err)
		}
	}
	return nil
}

// floats views an aligned payload as float32 in native byte order, which all nodes of a job share.
func floats(b []byte) []float32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// Error says where training failed.
type Error struct {
	Pipeline int // 0-based; -1 when it is not one pipeline's
	Stage    int // 0-based
	Step     uint64
	Op       string // "F3", "optimizer step", "round 12"
	Err      error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %v", e.Op, e.Err)
	if bad, is := errors.AsType[*stage.NonFiniteError](e.Err); is { // it says where as well
		text = e.Op + ": " + bad.Problem()
	}
	if e.Pipeline < 0 {
		return fmt.Sprintf("stage %d: %s", e.Stage, text)
	}
	return fmt.Sprintf("pipeline %d, stage %d, step %d: %s", e.Pipeline, e.Stage, e.Step, text)
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// finite reports a value that is not, for stages that do not check themselves.
func finite(what string, index int, step uint64, value float64) error {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return &stage.NonFiniteError{What: what, Stage: index, Step: step, Value: value}
	}
	return nil
}
