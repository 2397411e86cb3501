package pipeline

import (
	"context"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/schedule"
)

// feedAhead is how many batches a feeder of a stage may have filled beyond those that are used up: those in use at once, of which a plan that
// runs on across batches has several, and one in advance.
func feedAhead(row []schedule.Op, stage, micros int) int {
	most, begun, ended := 1, 0, 0
	for _, op := range row {
		switch batch := op.Micro / micros; {
		case op.Stage != stage:
		case op.Kind == schedule.Forward:
			begun = max(begun, batch+1)
			most = max(most, begun-ended)
		case op.Kind == schedule.Update && op.Micro%micros == micros-1:
			ended = batch + 1
		}
	}
	return most + 1
}

// feeder fills the data of one pipeline ahead of its first or last stage, or of both when they are one. To the stage it is a link
// like any other, so that waiting for data is waiting upstream. It is woken once a batch, not for each micro-batch.
type feeder struct {
	stageID
	source         Source
	micros         int
	gate           *gate
	start          uint64
	input, targets wire.End      // where inputs and labels go; nil when the stage takes none
	inputs, labels int           // bytes
	credits        chan struct{} // one for each batch that may be filled; its capacity is feedAhead
}

// run fills until training ends.
func (f *feeder) run(ctx context.Context) error {
	for step := f.start; step < f.gate.last()*f.gate.tau; step++ {
		if _, err := receive(ctx, f.credits); err != nil {
			return err
		}
		for micro := range f.micros {
			if err := f.fill(ctx, step, micro); err != nil {
				return &Error{Pipeline: f.pipeline, Stage: f.index, Step: step, Op: fmt.Sprintf("data of micro-batch %d", micro), Err: err}
			}
		}
	}
	return nil
}

// next lets the feeder fill one more batch. The batches that were filled are used up one by one, so it never blocks.
func (f *feeder) next() { f.credits <- struct{}{} }

func (f *feeder) fill(ctx context.Context, step uint64, micro int) error {
	h := f.header(wire.Activation, max(f.index-1, 0), f.index, step, micro)
	var input, labels wire.Frame
	if f.input != nil {
		input = f.input.NewFrame(h, f.inputs)
	}
	if f.targets != nil {
		labels = f.targets.NewFrame(h, f.labels)
	}
	if err := f.source.Fill(step, micro, input.Payload, labels.Payload); err != nil {
		return err
	}
	if f.input != nil {
		if err := f.input.Send(ctx, input); err != nil {
			return err
		}
	}
	if f.targets != nil {
		return f.targets.Send(ctx, labels)
	}
	return nil
}
