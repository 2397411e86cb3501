package pipeline

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/schedule"
)

// Squares are what the scale of the noise of gradients is estimated by (McCandlish et al. 2018, appendix A.1): squared norms over all stages of the gradient of the first micro-batch of a batch whose
// backward runs, and of the gradient of the whole batch, of one pipeline, before clipping and before any exchange with others. A tied parameter counts once.
type Squares struct {
	// Share is what the micro-batch weighs in the batch: that of its samples or, where not all have as many targets that count, of those.
	Share float64
	First float64 // of the micro-batch's own gradient, as the mean over its samples
	All   float64
}

// NoiseProblem says why no pipeline can report Squares with a plan of so many micro-batches; "" where it can. It is a statement that follows "and" or "since".
func NoiseProblem(plan schedule.Plan, micros int) string {
	switch {
	case micros < 2:
		return "a batch has one micro-batch, so that there is no smaller gradient to compare that of the batch with"
	case plan.Updates() > 0:
		return "the schedule takes optimizer steps inside of a batch, so that no gradient of a whole batch exists"
	}
	first := -1
	for _, row := range plan {
		seen := map[cellKey]bool{}
		for _, op := range row {
			key, is := backwardOf(op)
			if !is || seen[key] {
				continue
			}
			seen[key] = true
			if first < 0 {
				first = op.Micro
			}
			if op.Micro != first {
				return fmt.Sprintf("the plan begins its backwards with micro-batch %d on one stage and with %d on another", first, op.Micro)
			}
		}
	}
	return ""
}

// cellKey is a kind of backward on a stage: whole ones and input halves are one kind, since a micro-batch has one of them.
type cellKey struct {
	stage  int
	weight bool
}

// backwardOf is the kind of an op, where that is a backward.
func backwardOf(op schedule.Op) (key cellKey, is bool) {
	switch op.Kind {
	case schedule.Backward, schedule.BackwardInput:
		return cellKey{op.Stage, false}, true
	case schedule.BackwardWeight:
		return cellKey{op.Stage, true}, true
	case schedule.Forward, schedule.Update:
	}
	return key, false
}

// firsts finds the ops after which the gradients of a stage are those of one micro-batch.
func firsts(cells []cell, stage int) {
	seen := map[cellKey]bool{}
	for i := range cells {
		if key, is := backwardOf(cells[i].Op); is && key.stage == stage && !seen[key] {
			seen[key], cells[i].first = true, true
		}
	}
}

// squares reports whether the pipeline reports those of a step.
func (r *runner) squares(step uint64) bool {
	every := r.config.NoiseEvery
	return every > 0 && (step+1)%every == 0
}

// keepTies keeps what the first micro-batch left in the gradients that are tied to another stage, until the batch ends: the memory that they are exchanged through is free until then. On the executor.
func (r *runner) keepTies(kind schedule.Kind) {
	if r.tie == nil || kind == schedule.BackwardInput {
		return
	}
	for i := range r.ties {
		r.ties[i].gradient.Read(r.ties[i].host, 0)
	}
}

// finishGradients completes the gradients of a batch by those of tied parameters, and finds the squares of the stage where they are reported.
func (r *runner) finishGradients(ctx context.Context, step uint64) (own [2]float64, err error) {
	tied, measures := 0.0, r.squares(step)
	if measures {
		if tied, err = r.squareTies(ctx, step); err != nil {
			return own, r.fault(step, "tied gradients of a micro-batch", err)
		}
	}
	if err := r.exchangeTies(ctx, step); err != nil {
		return own, r.fault(step, "tied gradients", err)
	}
	if !measures {
		return own, nil
	}
	err = r.do(ctx, step, func() (err error) {
		own[0], own[1], err = r.stage.Squares()
		return err
	})
	if err != nil {
		return own, r.fault(step, "squares of gradients", err)
	}
	own[0] += tied
	return own, nil
}

// squareTies is the squared norm of the first micro-batch's gradients of parameters that lie on the first and on the last stage: 0 on the last, which sends its part to the first.
func (r *runner) squareTies(ctx context.Context, step uint64) (sum float64, err error) {
	if r.tie == nil {
		return 0, nil
	}
	other := r.stages - 1 - r.index
	for i := range r.ties {
		t := &r.ties[i]
		if r.last() {
			f := r.tie.NewFrame(r.header(wire.Tied, r.index, other, step, i), 4*len(t.host))
			copy(floats(f.Payload), t.host)
			if err := r.tie.Send(ctx, f); err != nil {
				return 0, fmt.Errorf("send %s: %w", t.name, err)
			}
			continue
		}
		f, err := r.receive(ctx, r.tie, r.header(wire.Tied, other, r.index, step, i), 4*len(t.host))
		if err != nil {
			return 0, fmt.Errorf("receive %s: %w", t.name, err)
		}
		for j, g := range floats(f.Payload) {
			both := float64(g + t.host[j])
			sum += both * both
		}
		f.Release()
	}
	return sum, nil
}

// squaresBytes is the payload of what a stage passes on.
const squaresBytes = 16

// sumUpSquares adds the squares of all stages up, down the pipeline, and has the last stage report them. It comes after the stage's own step, which so need not wait for other stages.
func (r *runner) sumUpSquares(ctx context.Context, report *StepReport, own [2]float64) error {
	if !r.squares(report.Step) {
		return nil
	}
	if !r.first() {
		f, err := r.receive(ctx, r.up, r.header(wire.Norm, r.index-1, r.index, report.Step, -1), squaresBytes)
		if err != nil {
			return r.fault(report.Step, "squares of gradients", err)
		}
		for i := range own {
			own[i] += math.Float64frombits(binary.LittleEndian.Uint64(f.Payload[8*i:]))
		}
		f.Release()
	}
	if r.last() {
		if share := r.shares[r.firstMicro()]; share > 0 && share < 1 {
			report.Squares = &Squares{Share: share, First: own[0] / (share * share), All: own[1]}
		}
		return nil
	}
	f := r.down.NewFrame(r.header(wire.Norm, r.index, r.index+1, report.Step, -1), squaresBytes)
	for i, v := range own {
		binary.LittleEndian.PutUint64(f.Payload[8*i:], math.Float64bits(v))
	}
	if err := r.down.Send(ctx, f); err != nil {
		return r.fault(report.Step, "squares of gradients", err)
	}
	return nil
}

// firstMicro is the micro-batch whose backward the plan begins with.
func (r *runner) firstMicro() int {
	for _, c := range r.dispatcher.cells {
		if c.first && c.runner == r {
			return c.Micro
		}
	}
	return 0
}
