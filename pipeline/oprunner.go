package pipeline

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
)

// stageID names a stage of a pipeline, and the generation.
type stageID struct {
	pipeline, index, stages int
	generation              uint64
}

func (s stageID) first() bool { return s.index == 0 }
func (s stageID) last() bool  { return s.index == s.stages-1 }

// header of a frame from stage from to stage to.
func (s stageID) header(kind wire.Kind, from, to int, step uint64, micro int) wire.Header {
	return wire.Header{
		Kind: kind, Generation: s.generation, Pipeline: s.pipeline, From: from, To: to, Step: step, Micro: micro,
	}
}

// span is one of this stage without its times.
func (s stageID) span(kind trace.Kind, step uint64, micro int) trace.Span {
	return trace.Span{Kind: kind, Pipeline: s.pipeline, Stage: s.index, Step: step, Micro: micro}
}

// ends are a runner's links. The first stage's up comes from the feeder of inputs, and the last stage's targets from the
// feeder of labels; targets is nil elsewhere, down on the last stage, and tie where no parameter is tied.
type ends struct {
	up, down, tie, targets wire.End
}

// handed are the boundaries in device memory that a stage writes for one beside it: those that nobody holds. Nil: there are none.
type handed struct {
	back func(wire.Frame) // put, as a value made once

	mu   sync.Mutex
	free []device.Mem
}

func newHanded(buffers []device.Mem) *handed {
	if len(buffers) == 0 {
		return nil
	}
	h := &handed{free: slices.Clone(buffers)}
	h.back = h.put
	return h
}

func (h *handed) put(f wire.Frame) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.free = append(h.free, f.Memory)
}

// frame is one for a boundary of so many bytes, over a link.
func (h *handed) frame(link wire.End, header wire.Header, bytes int) (wire.Frame, error) {
	if h == nil {
		return link.NewFrame(header, bytes), nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.free) - 1
	if last < 0 {
		return wire.Frame{}, fmt.Errorf("make %v: all boundaries in device memory are in use: the plan has more micro-batches in flight than were counted", header)
	}
	m := h.free[last]
	h.free = h.free[:last]
	return wire.Lend(header, m, h.back), nil
}

// boundary is what a frame carries.
func boundary(f wire.Frame) stage.Boundary { return stage.Boundary{Host: f.Payload, Memory: f.Memory} }

// inFlight is what a micro-batch holds between its forward and its backward.
type inFlight struct {
	input, labels, grad wire.Frame
	version             int // of the weights that it reads
}

func (p *inFlight) release() {
	p.input.Release()
	p.labels.Release()
	p.grad.Release()
}

// outcome is what came of a batch: its loss, on the last stage, or why it failed.
type outcome struct {
	loss float64
	err  error
}

// begin has the ops of the plan run, from a step on. Each of its batches has an outcome.
func (r *runner) begin(step uint64) {
	d := r.dispatcher
	d.mu.Lock()
	r.active, r.awaited, r.begun, r.labels = true, true, trace.Now(), r.labels[:0]
	r.step, r.forward = step, 0
	clear(r.losses)
	d.unlockAndAdvance()
}

// await returns when the next batch has ended.
func (r *runner) await(ctx context.Context) (loss float64, err error) {
	select {
	case o := <-r.done:
		return o.loss, o.err
	case <-ctx.Done():
		d := r.dispatcher
		d.mu.Lock()
		r.active, r.awaited = false, false
		d.mu.Unlock()
		return 0, context.Cause(ctx)
	}
}

// stepOf is the step whose batch an op is of.
func (r *runner) stepOf(c *cell) uint64 { return r.step + uint64(c.batch) } //nolint:gosec // counts from 0

// finish ends a batch with its last op, or all with an error. The caller holds the dispatcher's mu.
func (r *runner) finish(c *cell, err error) {
	if !r.awaited {
		return
	}
	if err != nil || c.last {
		r.active, r.awaited = false, false
	}
	o := outcome{err: err}
	if err == nil {
		o.loss = r.losses[c.batch]
	}
	r.done <- o
}

// gather takes what an op needs from the links. False: not all is there yet. The caller holds the dispatcher's mu.
func (r *runner) gather(c *cell) (bool, error) {
	switch c.Kind {
	case schedule.Forward:
		ok, err := fetch(r.up, &r.input)
		if !ok || r.targets == nil {
			return ok, err
		}
		return r.gatherLabels(c.batch)
	case schedule.Backward, schedule.BackwardInput:
		if !r.last() {
			return fetch(r.down, &r.grad)
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

// gatherLabels takes the labels of all micro-batches of a batch, before its first forward. Then the weights are the shares of the
// targets that count, so the loss and its gradient are those of the batch (or of each optimizer step in it) as a whole, however
// it is cut.
func (r *runner) gatherLabels(batch int) (bool, error) {
	first := batch * r.config.MicroBatches
	all := first + r.config.MicroBatches
	if len(r.labels) >= all {
		return true, nil
	}
	for len(r.labels) < all {
		f, ok, err := r.targets.TryReceive()
		if !ok {
			return false, err
		}
		r.labels = append(r.labels, f)
	}
	from, counted := first, 0
	at, _ := slices.BinarySearch(r.groups, first)
	for _, to := range r.groups[at:] {
		if from == all {
			break
		}
		total := 0
		for i := from; i <= to; i++ {
			count := stage.CountTargets(r.labels[i].Payload)
			r.shares[i] = float64(count)
			total += count
		}
		for i := from; i <= to; i++ {
			r.weights[i] = float32(r.shares[i] / float64(max(total, 1)))
		}
		from, counted = to+1, counted+total
	}
	for i := first; i < all; i++ {
		r.shares[i] /= float64(max(counted, 1))
	}
	return true, nil
}

// claim moves what was gathered for an op to its micro-batch. The caller holds the dispatcher's mu.
func (r *runner) claim(op schedule.Op) *inFlight {
	p := &r.inFlight[op.Micro]
	if op.Kind == schedule.Forward {
		*p = inFlight{input: r.input, version: op.Version}
		if r.targets != nil {
			p.labels = r.labels[op.Micro]
		}
	} else if r.grad.Kind != 0 {
		p.grad = r.grad
	}
	r.input, r.grad = wire.Frame{}, wire.Frame{}
	return p
}

// emit says what passed between the op before, at since, and this one, whose input was there at ready and which ran from start to end.
func (r *runner) emit(o *issued, since, ready, start, end time.Duration) {
	e := r.span(trace.WaitUpstream, o.step, o.index)
	if e.Work = o.Kind; o.Kind != schedule.Forward {
		e.Kind = trace.WaitDownstream
	}
	e.Start, e.End = since, ready
	r.dispatcher.trace.Emit(e)
	e.Kind, e.Start, e.End = trace.WaitDevice, ready, start
	r.dispatcher.trace.Emit(e)
	if e.Kind = trace.Compute; o.Kind == schedule.Update {
		e.Kind = trace.Optimizer
	}
	e.Start, e.End = start, end
	r.dispatcher.trace.Emit(e)
}

// compute hands an op to the device.
func (r *runner) compute(o *issued) (err error) {
	m := stage.Micro{Step: o.step, Index: o.index, Weight: r.weights[o.Micro], Version: o.version, Last: o.final}
	switch o.Kind {
	case schedule.Forward:
		if r.last() {
			r.forward += r.shares[o.Micro]
		}
		o.link, o.made, err = r.runForward(m, o.inFlight)
	case schedule.Update:
		err = r.updateInside(o)
	case schedule.Backward, schedule.BackwardInput, schedule.BackwardWeight:
		m.Squares = o.first && r.squares(o.step)
		if o.link, o.made, err = r.runBackward(o.Kind, m, o.inFlight); m.Squares && err == nil {
			r.keepTies(o.Kind)
		}
	}
	return err
}

// leave sends what an op made, and gives back what its micro-batch does not need any more.
func (r *runner) leave(o *issued, err error) error {
	if o.Kind == schedule.Backward || o.Kind == schedule.BackwardWeight || err != nil {
		o.release()
	}
	switch {
	case o.link == nil:
		return err
	case err != nil:
		o.made.Release()
		return err
	}
	return o.link.Send(r.ctx, o.made)
}

func (r *runner) runForward(m stage.Micro, p *inFlight) (link wire.End, out wire.Frame, err error) {
	if err := r.expect(p.input, wire.Activation, r.index-1, m, r.shape.InputBytes); err != nil {
		return nil, out, err
	}
	if r.last() {
		if err := r.expect(p.labels, wire.Activation, r.index-1, m, r.shape.LabelBytes); err != nil {
			return nil, out, err
		}
		return nil, out, r.stage.Forward(m, boundary(p.input), p.labels.Payload, stage.Boundary{})
	}
	out, err = r.outputs.frame(r.down, r.header(wire.Activation, r.index, r.index+1, m.Step, m.Index), r.shape.OutputBytes)
	if err != nil {
		return nil, out, err
	}
	return r.down, out, r.stage.Forward(m, boundary(p.input), nil, boundary(out))
}

var parts = map[schedule.Kind]stage.Part{
	schedule.Backward: stage.Whole, schedule.BackwardInput: stage.Input, schedule.BackwardWeight: stage.Weight,
}

func (r *runner) runBackward(kind schedule.Kind, m stage.Micro, p *inFlight) (link wire.End, out wire.Frame, err error) {
	if !r.last() && kind != schedule.BackwardWeight {
		if err := r.expect(p.grad, wire.Gradient, r.index+1, m, r.shape.OutputBytes); err != nil {
			return nil, out, err
		}
	}
	if r.first() || kind == schedule.BackwardWeight {
		return nil, out, r.stage.Backward(m, parts[kind], boundary(p.grad), stage.Boundary{})
	}
	out, err = r.gradients.frame(r.up, r.header(wire.Gradient, r.index, r.index-1, m.Step, m.Index), r.shape.InputBytes)
	if err != nil {
		return nil, out, err
	}
	return r.up, out, r.stage.Backward(m, parts[kind], boundary(p.grad), boundary(out))
}

// expect verifies that a frame is the one that the plan wants now.
func (r *runner) expect(f wire.Frame, kind wire.Kind, from int, m stage.Micro, bytes int) error {
	return verify(f, r.header(kind, max(from, 0), r.index, m.Step, m.Index), bytes)
}

// verify compares a frame with what its receiver expects.
func verify(f wire.Frame, want wire.Header, bytes int) error {
	if f.Header != want {
		return fmt.Errorf("received %v, expected %v: the stages do not run the same plan", f.Header, want)
	}
	if found := boundary(f).Bytes(); found != bytes {
		return fmt.Errorf("received %v with %d bytes, expected %d: the stages do not have the same shapes", f.Header, found, bytes)
	}
	return nil
}
