package pipeline

import (
	"context"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/wire"
)

// feedAhead is how many micro-batches a feeder fills before they are wanted.
const feedAhead = 4

// feeder fills the data of one pipeline ahead of its first or last stage, or of both when they are one. To the stage it is a link
// like any other, so that waiting for data is waiting upstream.
type feeder struct {
	seat
	source         Source
	micros         int
	gate           *gate
	start          uint64
	input, targets wire.End // where inputs and labels go; nil when the stage takes none
	inputs, labels int      // bytes
}

// run fills until training ends.
func (f *feeder) run(ctx context.Context) error {
	for step := f.start; f.gate.ahead(step); step++ {
		for micro := range f.micros {
			if err := f.fill(ctx, step, micro); err != nil {
				return &Error{Pipeline: f.pipeline, Stage: f.index, Step: step, Op: fmt.Sprintf("data of micro-batch %d", micro), Err: err}
			}
		}
	}
	return nil
}

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
