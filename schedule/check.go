package schedule

import (
	"errors"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/words"
)

// Limits bounds what a plan may use. The zero value sets no limit.
type Limits struct {
	// InFlight is, per device, how many micro-batches its memory holds between their forward and their backward, counted on
	// each of its stages; 0 is no limit on that device. Nil is no limit at all.
	InFlight []int
	// Versions is, per stage, how many versions of its weights the memory holds, the newest included; 0 is no limit on that
	// stage. Nil is no limit at all.
	Versions []int
	// LinkDepth is how many messages one direction of a link holds; a stage with one more to send waits. 0 is no limit.
	LinkDepth int
}

// validate refuses limits that no plan of so many devices and stages can be held to.
func (l Limits) validate(devices, stages int) error {
	if l.LinkDepth < 0 {
		return fmt.Errorf("link depth is %d; want 1 or more, or 0 for no limit", l.LinkDepth)
	}
	unit := "device"
	if devices == stages {
		unit = "stage"
	}
	if err := validateLimit("in-flight", unit, l.InFlight, devices); err != nil {
		return err
	}
	return validateLimit("version", "stage", l.Versions, stages)
}

// validateLimit refuses a list of limits that is not one number, 0 or more, for each of n units.
func validateLimit(name, unit string, limits []int, n int) error {
	if limits != nil && len(limits) != n {
		return fmt.Errorf("%d %s limits for %s; want one a %s, or none", len(limits), name, words.Count(n, unit), unit)
	}
	for k, limit := range limits {
		if limit < 0 {
			return fmt.Errorf("%s limit of %s %d is %d; want 1 or more, or 0 for no limit", name, unit, k, limit)
		}
	}
	return nil
}

// Check proves that a plan can run a batch of microBatches on links that deliver in order:
//   - stages are numbered from 0 without a gap, and each lives on one device;
//   - every stage does each micro-batch's forward exactly once and its backward exactly once, whole or as two halves;
//   - a backward comes after its forward, a weight half after its input half;
//   - either no stage takes updates, or all take them after the same micro-batches: an update when just the backwards up to its
//     micro-batch are done, the last one after the last micro-batch;
//   - a forward reads weights that exist by then (older ones than the newest are kept until their last backward);
//   - both ends of a link agree on the order of the micro-batches that cross it;
//   - no device has more micro-batches in flight and no stage keeps more versions of its weights than the limits allow;
//   - no set of devices wait for each other, with the links as deep as the limits say, also those between two stages of one
//     device.
//
// A fault of the plan is an error of type *PlanError. The work is O(ops).
func Check(plan Plan, microBatches int, limits Limits) error {
	if err := checkOrder(plan, microBatches); err != nil {
		return err
	}
	if err := limits.validate(len(plan), plan.Stages()); err != nil {
		return fmt.Errorf("schedule: check: %w", err)
	}
	if err := checkInFlight(plan, limits.InFlight); err != nil {
		return err
	}
	if err := checkVersions(plan, limits.Versions); err != nil {
		return err
	}
	return checkProgress(plan, limits.LinkDepth, func(_, _ int) {})
}

// checkOrder proves what does not depend on limits, up to deadlock.
func checkOrder(plan Plan, microBatches int) error {
	if len(plan) == 0 {
		return errors.New("schedule: the plan has no devices; want at least 1")
	}
	if microBatches < 1 {
		return fmt.Errorf("schedule: %d micro-batches; want at least 1", microBatches)
	}
	if err := checkPlacement(plan); err != nil {
		return err
	}
	work := plan.byStage()
	if err := checkStages(plan, work, microBatches); err != nil {
		return err
	}
	return checkLinks(plan, work)
}

// checkPlacement proves that each stage, 0 and up without a gap, lives on one device, and that each device has one.
func checkPlacement(plan Plan) error {
	// A plan has no more stages than ops, which bounds the memory that a large number in a cell can ask for.
	home := make([]int, min(plan.Ops(), largestStage(plan)+1))
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

// largestStage is the largest that an op names.
func largestStage(plan Plan) int { return plan.Stages() - 1 }

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

// checkInFlight reports the first forward with one micro-batch more in flight than its device may hold.
func checkInFlight(plan Plan, limits []int) error {
	for d, limit := range limits {
		inFlight := 0
		for i, op := range plan[d] {
			inFlight += inFlightBy(op.Kind)
			if limit > 0 && inFlight > limit {
				message := fmt.Sprintf("%s would put %d micro-batches in flight, of at most %d; run a backward first, or take a schedule with fewer in flight",
					plan.label(op), inFlight, limit)
				return plan.fault(OverLimit, cell{d, i}, nil, message)
			}
		}
	}
	return nil
}

// checkVersions reports the first update that makes a version of the weights more than its stage may keep.
func checkVersions(plan Plan, limits []int) error {
	if limits == nil {
		return nil
	}
	for s, w := range plan.byStage() {
		at, limit := -1, limits[s]
		walkVersions(plan[w.device], w.at, func(position, kept int) {
			if limit > 0 && kept > limit && at < 0 {
				at = position
			}
		})
		if at >= 0 {
			message := fmt.Sprintf("%s makes version %d of the weights of stage %d that is kept at once, of at most %d; finish the backwards that read old ones first, or take a schedule that keeps fewer",
				plan.label(plan[w.device][at]), limit+1, s, limit)
			return plan.fault(OverLimit, cell{w.device, at}, nil, message)
		}
	}
	return nil
}
