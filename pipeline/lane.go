package pipeline

import (
	"context"
	"fmt"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
)

// lane is one stage of a walk: what its ops take, hold, compute and send.
type lane struct {
	ctx context.Context // of the group's run: bounds a Send, which a checked plan never makes wait
	seat
	ends
	walk   *walk
	micros int
	groups []int // the last micro-batch of each optimizer step, ascending
	stage  stage.Stage
	shape  stage.Shape
	take   func(c *cell) error // takes an optimizer step inside of a batch
	done   chan error          // one result for each batch that began; capacity 1

	// The walk's mu guards these.
	active bool          // a batch is in progress
	begun  time.Duration // when it began
	input  wire.Frame    // for the next op, once arrived
	grad   wire.Frame
	labels []wire.Frame // of the batch's micro-batches, as far as they have arrived; on the last stage

	// The executor's alone while a batch is in progress.
	step    uint64
	pins    []pin     // by micro-batch
	weights []float32 // of the micro-batches in the mean loss of their optimizer step
	shares  []float64 // of the micro-batches in the mean loss of the batch; on the last stage, as are the two below
	forward float64   // the share of the forwards since the last optimizer step
	loss    float64   // of the optimizer steps inside of the batch, each with the share of its forwards
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
	version             int // of the weights that it reads
}

func (p *pin) release() {
	p.input.Release()
	p.labels.Release()
	p.grad.Release()
}

// listen has the links poke the walk. It is called once, before the first batch.
func (l *lane) listen() {
	l.pins, l.weights, l.shares = make([]pin, l.micros), make([]float32, l.micros), make([]float64, l.micros)
	from := 0
	for _, to := range l.groups {
		for i := from; i <= to; i++ {
			l.weights[i] = 1 / float32(to+1-from)
		}
		from = to + 1
	}
	for _, e := range []wire.End{l.up, l.down, l.targets} {
		if e != nil {
			e.OnArrival(l.walk.poke)
		}
	}
}

// batch runs all ops of a step and returns when the last has ended.
func (l *lane) batch(ctx context.Context, step uint64) error {
	w := l.walk
	w.mu.Lock()
	l.active, l.begun, l.labels = true, trace.Now(), l.labels[:0]
	l.step, l.forward, l.loss = step, 0, 0
	w.unlockAndAdvance()
	select {
	case err := <-l.done:
		return err
	case <-ctx.Done():
		w.mu.Lock()
		l.active = false
		w.mu.Unlock()
		return context.Cause(ctx)
	}
}

// finish ends the batch. The caller holds the walk's mu.
func (l *lane) finish(err error) {
	if l.active {
		l.active = false
		l.done <- err
	}
}

func (l *lane) fault(op schedule.Op, err error) error {
	return &Error{Pipeline: l.pipeline, Stage: l.index, Step: l.step, Op: op.String(), Err: err}
}

// gather takes what an op needs from the links. False: not all is there yet. The caller holds the walk's mu.
func (l *lane) gather(kind schedule.Kind) (bool, error) {
	switch kind {
	case schedule.Forward:
		ok, err := fetch(l.up, &l.input)
		if !ok || l.targets == nil {
			return ok, err
		}
		return l.gatherLabels()
	case schedule.Backward, schedule.BackwardInput:
		if !l.last() {
			return fetch(l.down, &l.grad)
		}
	case schedule.BackwardWeight, schedule.Update:
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

// gatherLabels takes the labels of all micro-batches, before the first forward. Then the weights are the shares of the targets
// that count, so the loss and its gradient are those of the batch (or of each optimizer step in it) as a whole, however it
// is cut.
func (l *lane) gatherLabels() (bool, error) {
	if len(l.labels) == l.micros {
		return true, nil
	}
	for len(l.labels) < l.micros {
		f, ok, err := l.targets.TryReceive()
		if !ok {
			return false, err
		}
		l.labels = append(l.labels, f)
	}
	from, all := 0, 0
	for _, to := range l.groups {
		total := 0
		for i := from; i <= to; i++ {
			count := stage.CountTargets(l.labels[i].Payload)
			l.shares[i] = float64(count)
			total += count
		}
		for i := from; i <= to; i++ {
			l.weights[i] = float32(l.shares[i] / float64(max(total, 1)))
		}
		from, all = to+1, all+total
	}
	for i := range l.shares {
		l.shares[i] /= float64(max(all, 1))
	}
	return true, nil
}

// claim moves what was gathered for an op to its micro-batch's pin. The caller holds the walk's mu.
func (l *lane) claim(op schedule.Op) *pin {
	p := &l.pins[op.Micro]
	if op.Kind == schedule.Forward {
		*p = pin{input: l.input, version: op.Version}
		if l.targets != nil {
			p.labels = l.labels[op.Micro]
		}
	} else if l.grad.Kind != 0 {
		p.grad = l.grad
	}
	l.input, l.grad = wire.Frame{}, wire.Frame{}
	return p
}

// emitWaits says what passed between the op before, at since, and this one, at start, whose input was there at ready.
func (l *lane) emitWaits(op schedule.Op, since, ready, start time.Duration) {
	e := l.event(trace.WaitUpstream, l.step, op.Micro)
	if e.Work = works[op.Kind]; op.Kind != schedule.Forward {
		e.Kind = trace.WaitDownstream
	}
	e.Start, e.End = since, ready
	l.walk.trace.Emit(e)
	e.Kind, e.Start, e.End = trace.WaitDevice, ready, start
	l.walk.trace.Emit(e)
}

// works are the kinds of op in traces.
var works = [...]trace.Work{
	schedule.Forward: trace.Forward, schedule.Backward: trace.Backward,
	schedule.BackwardInput: trace.BackwardInput, schedule.BackwardWeight: trace.BackwardWeight,
	schedule.Update: trace.BackwardWeight, // which it follows
}

// compute runs one op and sends what it made.
func (l *lane) compute(c *cell, p *pin, start time.Duration) error {
	m := stage.Micro{Step: l.step, Index: c.Micro, Weight: l.weights[c.Micro], Version: p.version}
	var out wire.Frame
	var link wire.End
	var err error
	e := l.event(trace.Compute, l.step, c.Micro)
	switch c.Kind {
	case schedule.Forward:
		link, out, err = l.runForward(m, p)
	case schedule.Update:
		e.Kind = trace.Optimizer
		err = l.take(c)
	case schedule.Backward, schedule.BackwardInput, schedule.BackwardWeight:
		link, out, err = l.runBackward(c.Kind, m, p)
	}
	e.Start, e.End, e.Work = start, trace.Now(), works[c.Kind]
	l.walk.trace.Emit(e)
	if c.Kind == schedule.Backward || c.Kind == schedule.BackwardWeight || err != nil {
		p.release()
	}
	switch {
	case link == nil:
		return err
	case err != nil:
		out.Release()
		return err
	}
	return link.Send(l.ctx, out)
}

func (l *lane) runForward(m stage.Micro, p *pin) (link wire.End, out wire.Frame, err error) {
	if err := l.expect(p.input, wire.Activation, l.index-1, m, l.shape.InputBytes); err != nil {
		return nil, out, err
	}
	if l.last() {
		if err := l.expect(p.labels, wire.Activation, l.index-1, m, l.shape.LabelBytes); err != nil {
			return nil, out, err
		}
		l.forward += l.shares[m.Index]
		return nil, out, l.stage.Forward(m, p.input.Payload, p.labels.Payload, nil)
	}
	out = l.down.NewFrame(l.header(wire.Activation, l.index, l.index+1, m.Step, m.Index), l.shape.OutputBytes)
	return l.down, out, l.stage.Forward(m, p.input.Payload, nil, out.Payload)
}

var parts = map[schedule.Kind]stage.Part{
	schedule.Backward: stage.Whole, schedule.BackwardInput: stage.Input, schedule.BackwardWeight: stage.Weight,
}

func (l *lane) runBackward(kind schedule.Kind, m stage.Micro, p *pin) (link wire.End, out wire.Frame, err error) {
	if !l.last() && kind != schedule.BackwardWeight {
		if err := l.expect(p.grad, wire.Gradient, l.index+1, m, l.shape.OutputBytes); err != nil {
			return nil, out, err
		}
	}
	if l.first() || kind == schedule.BackwardWeight {
		return nil, out, l.stage.Backward(m, parts[kind], p.grad.Payload, nil)
	}
	out = l.up.NewFrame(l.header(wire.Gradient, l.index, l.index-1, m.Step, m.Index), l.shape.InputBytes)
	return l.up, out, l.stage.Backward(m, parts[kind], p.grad.Payload, out.Payload)
}

// expect verifies that a frame is the one that the plan wants now.
func (l *lane) expect(f wire.Frame, kind wire.Kind, from int, m stage.Micro, bytes int) error {
	return verify(f, l.header(kind, max(from, 0), l.index, m.Step, m.Index), bytes)
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
