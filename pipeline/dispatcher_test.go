package pipeline

import (
	"testing"

	"github.com/avgpipe/avgpipe/schedule"
)

// After an op that makes gradients final no other of its stage adds to them before the optimizer's step; and one op does before each step.
func TestFinalOpsAreTheLastBeforeAStep(t *testing.T) {
	for _, name := range schedule.Names() {
		grid := plan(t, name, 2, modelMicros)
		for _, row := range grid {
			runners := map[int]*runner{}
			for _, op := range row {
				runners[op.Stage] = nil
			}
			cells := cellsOf(row, runners, modelMicros)
			for stage := range runners {
				final, steps := 0, 0
				for i, c := range cells {
					if c.Stage != stage {
						continue
					}
					if c.Kind == schedule.Update {
						steps++
					}
					if !c.final {
						continue
					}
					final++
					for _, later := range cells[i+1:] {
						if later.Stage == stage && later.Kind == schedule.Update {
							break
						}
						if later.Stage == stage && (later.Kind == schedule.Backward || later.Kind == schedule.BackwardWeight) {
							t.Errorf("%s, stage %d: %v follows %v, which makes the gradients final", name, stage, later.Op, c.Op)
						}
					}
				}
				if final != max(steps, 1) {
					t.Errorf("%s, stage %d: %d ops make gradients final before %d steps", name, stage, final, max(steps, 1))
				}
			}
		}
	}
}
