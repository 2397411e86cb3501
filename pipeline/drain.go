package pipeline

import (
	"context"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// drains are the parts of a stage whose mean gradient was in flight after the round that the run goes on from, and which are not late any more; found is false where no stage of the pipeline
// has such parts.
func (s *shard) drains() (all []flat.Range, found bool) {
	from := s.snaps.resumed
	if from == nil || from.InFlight <= s.needs.StaleLayers {
		return nil, false
	}
	return elastic.Drained(s.config.Method, s.layout, from.InFlight), true
}

// drain applies what was in flight, before the first batch: the step of the optimizer that the next round would have taken with it, at that round's learning rate, clipped by the norm
// of what is applied. Layers that stay late keep their predicted weights.
func (r *runner) drain(ctx context.Context) error {
	parts, drains := r.shard.drains()
	if !drains {
		return nil
	}
	from, scale := r.shard.snaps.resumed, float32(1)
	err := r.do(ctx, r.start, func() error {
		r.stage.SumTies() // of no gradient: those in flight are sums
		for _, part := range parts {
			r.stage.Gradients().Slice(part.From, part.To).Write(from.State[0][part.From:part.To], 0)
		}
		return nil
	})
	if err == nil && r.config.ClipNorm > 0 {
		var sum float64
		sum, err = r.sumSquares(ctx, r.start, func(sum *float64) (err error) {
			*sum, err = r.stage.SquaredNorm(*sum)
			return err
		})
		scale = stage.ClipFactor(sum, r.config.ClipNorm)
	}
	if err != nil {
		return err
	}
	return r.do(ctx, r.start, func() error { return r.applyDrained(parts, scale) })
}

// applyDrained takes the step. On the executor.
func (r *runner) applyDrained(parts []flat.Range, scale float32) error {
	h := stage.Hyper{Before: r.fresh, LearningRate: r.config.LearningRate(r.start), GradScale: scale, Step: max(r.start-r.fresh, 1) - 1}
	for _, h.Elements = range parts {
		if err := r.stage.Step(h, nil); err != nil {
			return err
		}
	}
	if len(parts) > 0 && r.shard.needs.Predicts { // the step has ended the prediction of all
		r.shard.snaps.resumed.predicted(r.shard, r.pipeline)
	}
	r.stage.ZeroGradients()
	return nil
}

// predicted has a pipeline compute with the predicted weights of a round where gradients stay late, else with the parameters. On the executor.
func (s *Snapshot) predicted(sh *shard, pipeline int) {
	weights, at := sh.stages[pipeline].Predicted(), s.source(sh, pipeline)
	weights.Copy(sh.stages[pipeline].Parameters())
	for _, of := range sh.slices {
		if at >= 0 && !of.needs.Idle(s.Round+1) && of.needs.Timing == elastic.Before {
			of.cut(weights).Write(s.Pipelines[at].Predicted[of.From:of.To], 0)
		}
	}
}
