package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
)

// walk runs the ops of one batch after another on the device's executor, in the plan's order. Its state moves on whichever
// goroutine brings what the next op needs: poke, called by a link, looks whether all of it is there and then queues the
// walk on the executor; run, on the executor, computes one op, sends what it made and queues the walk again if the op after it can
// run as well. One op at a time, so pipelines on one device take turns, first come, first served.
type walk struct {
	ctx context.Context // of the group's run: bounds a Send, which a checked plan never makes wait
	seat
	ends
	ops      []schedule.Op
	micros   int
	stage    stage.Stage
	shape    stage.Shape
	executor *Executor
	trace    trace.Listener
	done     chan error // one result for each batch that began; capacity 1

	mu     sync.Mutex
	active bool // a batch is in progress
	queued bool // the next op is in the executor's queue, or runs
	next   int  // index of the next op
	step   uint64
	input  wire.Frame // for the next op, once arrived
	grad   wire.Frame
	labels []wire.Frame  // of the batch's micro-batches, as far as they have arrived; on the last stage
	since  time.Duration // when the op before ended
	ready  time.Duration // when the next op had all it needs

	pins    []pin     // by micro-batch; the executor's alone
	weights []float32 // of the micro-batches; written before the batch's first op, and only on the last stage
}

// seat is where a runner sits.
type seat struct {
	pipeline, index, stages int
	generation              uint64
}

func (s seat) first() bool { return s.index == 0 }
func (s seat) last() bool  { return s.index == s.stages-1 }

// header of a frame from stage from to stage to.
func (s seat) header(kind wire.Kind, from, to int, step uint64, micro int) wire.Header {
	return wire.Header{
		Kind: kind, Generation: s.generation, Pipeline: s.pipeline, From: from, To: to, Step: step, Micro: micro,
	}
}

// event is a span of this seat without its times.
func (s seat) event(kind trace.Kind, step uint64, micro int) trace.Event {
	return trace.Event{Kind: kind, Pipeline: s.pipeline, Stage: s.index, Step: step, Micro: micro}
}

// ends are a runner's links. The first stage's up comes from the feeder of inputs, and the last stage's targets from the
// feeder of labels; targets is nil elsewhere, down on the last stage, and tie where no parameter is tied.
type ends struct {
	up, down, tie, targets wire.End
}

// pin is what a micro-batch holds between its forward and its backward.
type pin struct {
	input, labels, grad wire.Frame
}

func (p *pin) release() {
	p.input.Release()
	p.labels.Release()
	p.grad.Release()
}

// listen has the links poke the walk. It is called once, before the first batch.
func (w *walk) listen() {
	w.pins, w.weights = make([]pin, w.micros), make([]float32, w.micros)
	for i := range w.weights {
		w.weights[i] = 1 / float32(w.micros)
	}
	for _, e := range []wire.End{w.up, w.down, w.targets} {
		if e != nil {
			e.OnArrival(w.poke)
		}
	}
}

// batch runs all ops of a step and returns when the last has ended.
func (w *walk) batch(ctx context.Context, step uint64) error {
	w.mu.Lock()
	w.active, w.next, w.step, w.since, w.labels = true, 0, step, trace.Now(), w.labels[:0]
	w.unlockAndAdvance()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		w.mu.Lock()
		w.active = false
		w.mu.Unlock()
		return context.Cause(ctx)
	}
}

// poke looks whether the next op can run now.
func (w *walk) poke() {
	w.mu.Lock()
	w.unlockAndAdvance()
}

// unlockAndAdvance queues the next op if all it needs has arrived, and releases mu: before it queues, or the executor would
// be woken only to wait for mu.
func (w *walk) unlockAndAdvance() {
	queue := w.active && !w.queued && w.advance()
	w.mu.Unlock()
	if queue {
		w.executor.submit(w)
	}
}

// advance reports whether the next op can run, and then counts it as queued. The caller holds mu; a batch is in progress and
// no op is queued or runs.
func (w *walk) advance() bool {
	if w.next == len(w.ops) {
		w.finish(nil)
		return false
	}
	ok, err := w.gather(w.ops[w.next].Kind)
	if err != nil {
		w.finish(w.fault(w.ops[w.next], err))
		return false
	}
	if ok {
		w.queued, w.ready = true, trace.Now()
	}
	return ok
}

// gather takes what an op needs from the links. False: not all is there yet.
func (w *walk) gather(kind schedule.Kind) (bool, error) {
	switch kind {
	case schedule.Forward:
		ok, err := fetch(w.up, &w.input)
		if !ok || w.targets == nil {
			return ok, err
		}
		return w.gatherLabels()
	case schedule.Backward, schedule.BackwardInput:
		if !w.last() {
			return fetch(w.down, &w.grad)
		}
	case schedule.BackwardWeight:
	}
	return true, nil
}

// gatherLabels takes the labels of all micro-batches, before the first forward. Then the weights are the shares of the targets
// that count, so the loss and its gradient are those of the batch as a whole, however it is cut.
func (w *walk) gatherLabels() (bool, error) {
	if len(w.labels) == w.micros {
		return true, nil
	}
	for len(w.labels) < w.micros {
		f, ok, err := w.targets.TryReceive()
		if !ok {
			return false, err
		}
		w.labels = append(w.labels, f)
	}
	total := 0
	for _, f := range w.labels {
		total += stage.CountTargets(f.Payload)
	}
	for i, f := range w.labels {
		w.weights[i] = float32(float64(stage.CountTargets(f.Payload)) / float64(max(total, 1)))
	}
	return true, nil
}

// fetch fills an empty slot with the next frame, if there is one.
func fetch(e wire.End, slot *wire.Frame) (bool, error) {
	if slot.Kind != 0 {
		return true, nil
	}
	f, ok, err := e.TryReceive()
	if ok {
		*slot = f
	}
	return ok, err
}

// finish ends the batch. The caller holds mu.
func (w *walk) finish(err error) {
	if w.active {
		w.active = false
		w.done <- err
	}
}

func (w *walk) fault(op schedule.Op, err error) error {
	return &Error{Pipeline: w.pipeline, Stage: w.index, Step: w.step, Op: op.String(), Err: err}
}

// run implements work: it computes the next op.
func (w *walk) run() {
	w.mu.Lock()
	if !w.active {
		w.mu.Unlock()
		return
	}
	op := w.ops[w.next]
	p := &w.pins[op.Micro]
	if op.Kind == schedule.Forward {
		*p = pin{input: w.input}
		if w.targets != nil {
			p.labels = w.labels[op.Micro]
		}
	} else if w.grad.Kind != 0 {
		p.grad = w.grad
	}
	w.input, w.grad = wire.Frame{}, wire.Frame{}
	since, ready, step := w.since, w.ready, w.step
	w.mu.Unlock()

	start := trace.Now()
	w.emitWaits(op, step, since, ready, start)
	err := w.compute(op, p, step, start)

	w.mu.Lock()
	w.queued = false
	w.next++
	w.since = trace.Now()
	if err != nil {
		w.finish(w.fault(op, err))
	}
	w.unlockAndAdvance()
}

// drop implements work.
func (w *walk) drop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queued = false
	if w.active {
		w.finish(w.fault(w.ops[w.next], err))
	}
}

// emitWaits says what passed between the op before, at since, and this one, at start, whose input was there at ready.
func (w *walk) emitWaits(op schedule.Op, step uint64, since, ready, start time.Duration) {
	e := w.event(trace.WaitUpstream, step, op.Micro)
	if e.Work = works[op.Kind]; op.Kind != schedule.Forward {
		e.Kind = trace.WaitDownstream
	}
	e.Start, e.End = since, ready
	w.trace.Emit(e)
	e.Kind, e.Start, e.End = trace.WaitDevice, ready, start
	w.trace.Emit(e)
}

// compute runs one op and sends what it made.
func (w *walk) compute(op schedule.Op, p *pin, step uint64, start time.Duration) error {
	m := stage.Micro{Step: step, Index: op.Micro, Weight: w.weights[op.Micro]}
	var out wire.Frame
	var link wire.End
	var err error
	if op.Kind == schedule.Forward {
		link, out, err = w.forward(m, p)
	} else {
		link, out, err = w.backward(op.Kind, m, p)
	}
	e := w.event(trace.Compute, step, op.Micro)
	e.Start, e.End, e.Work = start, trace.Now(), works[op.Kind]
	w.trace.Emit(e)
	if op.Kind == schedule.Backward || op.Kind == schedule.BackwardWeight || err != nil {
		p.release()
	}
	switch {
	case link == nil:
		return err
	case err != nil:
		out.Release()
		return err
	}
	return link.Send(w.ctx, out)
}

func (w *walk) forward(m stage.Micro, p *pin) (link wire.End, out wire.Frame, err error) {
	if err := w.expect(p.input, wire.Activation, w.index-1, m, w.shape.InputBytes); err != nil {
		return nil, out, err
	}
	if w.last() {
		if err := w.expect(p.labels, wire.Activation, w.index-1, m, w.shape.LabelBytes); err != nil {
			return nil, out, err
		}
		return nil, out, w.stage.Forward(m, p.input.Payload, p.labels.Payload, nil)
	}
	out = w.down.NewFrame(w.header(wire.Activation, w.index, w.index+1, m.Step, m.Index), w.shape.OutputBytes)
	return w.down, out, w.stage.Forward(m, p.input.Payload, nil, out.Payload)
}

// works are the kinds of op in traces.
var works = [...]trace.Work{
	schedule.Forward: trace.Forward, schedule.Backward: trace.Backward,
	schedule.BackwardInput: trace.BackwardInput, schedule.BackwardWeight: trace.BackwardWeight,
}

var parts = map[schedule.Kind]stage.Part{
	schedule.Backward: stage.Whole, schedule.BackwardInput: stage.Input, schedule.BackwardWeight: stage.Weight,
}

func (w *walk) backward(kind schedule.Kind, m stage.Micro, p *pin) (link wire.End, out wire.Frame, err error) {
	if !w.last() && kind != schedule.BackwardWeight {
		if err := w.expect(p.grad, wire.Gradient, w.index+1, m, w.shape.OutputBytes); err != nil {
			return nil, out, err
		}
	}
	if w.first() || kind == schedule.BackwardWeight {
		return nil, out, w.stage.Backward(m, parts[kind], p.grad.Payload, nil)
	}
	out = w.up.NewFrame(w.header(wire.Gradient, w.index, w.index-1, m.Step, m.Index), w.shape.InputBytes)
	return w.up, out, w.stage.Backward(m, parts[kind], p.grad.Payload, out.Payload)
}

// expect verifies that a frame is the one that the plan wants now.
func (w *walk) expect(f wire.Frame, kind wire.Kind, from int, m stage.Micro, bytes int) error {
	return verify(f, w.header(kind, max(from, 0), w.index, m.Step, m.Index), bytes)
}

// verify compares a frame with what its receiver expects.
func verify(f wire.Frame, want wire.Header, bytes int) error {
	if f.Header != want {
		return fmt.Errorf("received %v, expected %v: the stages do not run the same plan", f.Header, want)
	}
	if len(f.Payload) != bytes {
		return fmt.Errorf("received %v with %d bytes, expected %d: the stages do not have the same shapes", f.Header, len(f.Payload), bytes)
	}
	return nil
}
