package schedule

import (
	"errors"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/words"
)

// Check proves that a plan can run a batch of microBatches, or several (see Plan.Batches), on links that deliver in order:
//   - stages are numbered from 0 without a gap, and each lives on one device;
//   - every stage does each micro-batch's forward exactly once and its backward exactly once, whole or as two halves;
//   - a backward comes after its forward, a weight half after its input half;
//   - either no stage takes updates, or all take them after the same micro-batches: an update when just the backwards up to its
//     micro-batch are done, the last one of a batch after its last micro-batch;
//   - a forward reads weights that exist by then (older ones than the newest are kept until their last backward);
//   - both ends of a link agree on the order of the micro-batches that cross it;
//   - no set of devices wait for each other, however many messages a link holds.
//
// A fault of the plan is an error of type *PlanError. The work is O(ops).
func Check(plan Plan, microBatches int) error {
	if len(plan) == 0 {
		return errors.New("schedule: the plan has no devices; want at least 1")
	}
	if microBatches < 1 {
		return fmt.Errorf("schedule: %d micro-batches; want at least 1", microBatches)
	}
	if err := checkPlacement(plan); err != nil {
		return err
	}
	if err := checkStages(plan, plan.byStage(), microBatches*plan.Batches(microBatches), microBatches); err != nil {
		return err
	}
	return checkProgress(plan)
}

// Prove reads a plan that a user wrote, and proves that a job can run it: it passes Check, and all devices have the same number of
// stages.
func Prove(text string) (Plan, error) {
	plan, err := Parse(text)
	if err != nil {
		return nil, err
	}
	if err := Check(plan, max(1, plan.MicroBatches())); err != nil {
		return nil, err
	}
	stages := make([]int, len(plan))
	for _, d := range plan.Placement() {
		stages[d]++
	}
	for d, n := range stages {
		if n != stages[0] {
			return nil, fmt.Errorf("schedule: uneven: device 0 has %s, device %d has %d; want the same number on each device", words.Count(stages[0], "stage"), d, n)
		}
	}
	return plan, nil
}

// checkPlacement proves that each stage, 0 and up without a gap, lives on one device, and that each device has one.
func checkPlacement(plan Plan) error {
	// A plan has no more stages than ops, which bounds the memory that a large number in a cell can ask for.
	home := make([]int, min(plan.Ops(), plan.Stages()))
	for s := range home {
		home[s] = -1
	}
	for d, ops := range plan {
		if len(ops) == 0 {
			return plan.fault(Missing, cell{d, 0}, nil, "the device has no work; write its cells, such as \"F0 B0\", or leave its line out")
		}
		for i, op := range ops {
			switch {
			case op.Stage < 0:
				return plan.fault(OutOfRange, cell{d, i}, nil, fmt.Sprintf("stage %d does not exist; want 0 or more", op.Stage))
			case op.Stage >= len(home):
			case home[op.Stage] < 0:
				home[op.Stage] = d
			case home[op.Stage] != d:
				return plan.fault(Misplaced, cell{d, i}, nil,
					fmt.Sprintf("%s: stage %d lives on device %d already; all work of a stage is one device's", plan.label(op), op.Stage, home[op.Stage]))
			}
		}
	}
	gap := 0
	for gap < len(home) && home[gap] >= 0 {
		gap++
	}
	for d, ops := range plan {
		for i, op := range ops {
			if op.Stage > gap {
				return plan.fault(Missing, cell{d, i}, nil, fmt.Sprintf("%s is work of stage %d, but no device has stage %d; number stages from 0 without a gap",
					plan.label(op), op.Stage, gap))
			}
		}
	}
	return nil
}

// stageOps is where the work of one stage stands.
type stageOps struct {
	device int
	at     []int32 // positions in plan[device], ascending
}

// byStage finds the work of each stage. The stages must have passed checkPlacement.
func (p Plan) byStage() []stageOps {
	stages := make([]stageOps, p.Stages())
	count := make([]int, len(stages))
	for d, ops := range p {
		for _, op := range ops {
			count[op.Stage]++
			stages[op.Stage].device = d
		}
	}
	backing := make([]int32, p.Ops())
	for s, n := range count {
		stages[s].at, backing = backing[:0:n], backing[n:]
	}
	for _, ops := range p {
		for i, op := range ops {
			stages[op.Stage].at = append(stages[op.Stage].at, int32(i)) //nolint:gosec // a row is far shorter
		}
	}
	return stages
}
