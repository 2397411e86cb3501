package pipeline

import (
	"context"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// evaluator computes one stage's part of the evaluations, on the executor that trains. Each reads a copy of the center
// that the shard made as the round completed, so all stages evaluate the same round, whatever training has done since. Rounds are
// evaluated one after the other, in the same order on all stages.
type evaluator struct {
	stageID
	config   *Config
	stage    stage.Stage // computes with vector instead of its own parameters
	vector   flat.Vector // the copy of the center
	executor *executor
	source   Source
	up, down wire.End
	due      chan uint64   // rounds whose copy is made; capacity 1, closed when training is over
	free     chan struct{} // holds a token while nobody reads vector; capacity 1
}

func newEvaluator(s stageID, c *Config, on *localStage) *evaluator {
	v := &evaluator{
		stageID: s, config: c, stage: on.lead(), source: on.config.EvaluationSource, executor: on.executor,
		due: make(chan uint64, 1), free: make(chan struct{}, 1),
	}
	v.free <- struct{}{}
	return v
}

// claim waits until the evaluation before has ended. The one that is then started gives the claim back.
func (v *evaluator) claim(ctx context.Context) error {
	_, err := receive(ctx, v.free)
	return err
}

// run evaluates what is due until training is over or ctx ends.
func (v *evaluator) run(ctx context.Context) error {
	for {
		select {
		case round, ok := <-v.due:
			if !ok {
				return nil
			}
			if err := v.evaluate(ctx, round); err != nil {
				return &Error{Pipeline: -1, Stage: v.index, Op: fmt.Sprintf("evaluation of round %d", round), Err: err}
			}
			v.free <- struct{}{}
		case <-ctx.Done():
			return nil
		}
	}
}

// evaluate passes all held-out micro-batches through this stage.
func (v *evaluator) evaluate(ctx context.Context, round uint64) error {
	result := Evaluation{Round: round}
	for micro := range v.config.Evaluation.MicroBatches {
		score, err := v.forward(ctx, round, micro)
		if err != nil {
			return fmt.Errorf("micro-batch %d: %w", micro, err)
		}
		result.Score.Add(score)
	}
	if v.last() && v.config.Events.OnEvaluated != nil {
		v.config.Events.OnEvaluated(result)
	}
	return nil
}

// forward passes one micro-batch through this stage.
func (v *evaluator) forward(ctx context.Context, round uint64, micro int) (score stage.Score, err error) {
	shape := v.stage.Shape()
	input, labels, err := v.load(ctx, round, micro, shape)
	if err != nil {
		return score, err
	}
	defer input.Release()
	var out wire.Frame
	if !v.last() {
		out = v.down.NewFrame(v.header(wire.Evaluation, v.index, v.index+1, round, micro), shape.OutputBytes)
	}
	err = v.executor.Do(ctx, v.span(trace.Evaluate, round*v.config.tau(), micro), func() (err error) {
		score, err = v.stage.Evaluate(v.vector, input.Payload, labels, out.Payload)
		return err
	})
	if err != nil || v.last() {
		out.Release()
		return score, err
	}
	return score, v.down.Send(ctx, out)
}

// load gets a micro-batch's input from the stage before or from the source, and its labels on the last stage.
func (v *evaluator) load(ctx context.Context, round uint64, micro int, shape stage.Shape) (input wire.Frame, labels []byte, err error) {
	if v.last() {
		labels = stage.NewBoundary(shape.LabelBytes)
	}
	if v.first() {
		input.Payload = stage.NewBoundary(shape.InputBytes)
		return input, labels, v.source.Fill(round, micro, input.Payload, labels)
	}
	if input, err = v.up.Receive(ctx); err != nil {
		return input, nil, err
	}
	if err := verify(input, v.header(wire.Evaluation, v.index-1, v.index, round, micro), shape.InputBytes); err != nil {
		input.Release()
		return input, nil, err
	}
	if v.last() {
		err = v.source.Fill(round, micro, nil, labels)
	}
	return input, labels, err
}
