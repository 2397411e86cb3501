package pipeline

import (
	"fmt"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// updates is how many updates an optimizer has taken before a step, whose state was zero at the step fresh: one a step, but for an idle one.
func updates(needs elastic.Needs, fresh, step uint64) uint64 {
	if idle := needs.Synchronous; needs.Idle(idle+1) && fresh <= idle && idle < step {
		return step - fresh - 1
	}
	return step - fresh
}

// steps are the parts of a stage whose optimizer has a gradient to apply in a step, with the updates that it has taken before.
func (s *shard) steps(step, fresh uint64) []stepped {
	var all []stepped
	for _, of := range s.slices {
		if of.needs.Idle(step + 1) {
			continue
		}
		next := stepped{of.Range, updates(of.needs, fresh, step)}
		if of.drains && fresh == s.config.StartRound { // what was in flight was the first update
			next.updates++
		}
		if last := len(all) - 1; last >= 0 && all[last].elements.To == next.elements.From && all[last].updates == next.updates {
			all[last].elements.To = next.elements.To
			continue
		}
		all = append(all, next)
	}
	return all
}

// stepped is a part of a stage's vector, and how many updates it has taken.
type stepped struct {
	elements flat.Range
	updates  uint64
}

// message is what a pipeline sends in a round, of the whole stage.
func (s *shard) message(pipeline int, round uint64) flat.Vector {
	buffers := s.messages[pipeline]
	return buffers[round%uint64(len(buffers))]
}

// predict has a pipeline that has taken a step compute with the weights that it expects after the next one, where the method says what that one's gradient will be. h is that of the
// next step. On the executor.
func (s *shard) predict(pipeline int, step uint64, h stage.Hyper) error {
	round, of := step+1, s.stages[pipeline]
	var elements []flat.Range
	for _, part := range s.slices {
		rules, predicts := part.rules.(elastic.Predictor)
		if !predicts || !part.needs.Predicts || part.needs.TimingOf(round) != elastic.Before {
			continue
		}
		var moved flat.Vector
		if s.needs.Moved {
			moved = part.cut(s.moved)
		}
		earlier := part.message(pipeline, round+1) // of two buffers that of the round before
		if rules.Expect(part.gradients[pipeline], !part.needs.Idle(round), part.message(pipeline, round), earlier, moved) {
			h.Step = updates(part.needs, s.snaps.fresh[pipeline], round)
			h.Before, elements = round-h.Step, append(elements, part.Range)
		}
	}
	if err := of.Predict(h, of.Gradients(), elements...); err != nil {
		return fmt.Errorf("predict weights: %w", err)
	}
	return nil
}
