package schedule

import "slices"

// By how many an op of a kind changes the micro-batches between their forward and their backward, and those between the halves of it.
var (
	inFlightBy = [kinds]int{Forward: 1, Backward: -1, BackwardWeight: -1}
	halvesBy   = [kinds]int{BackwardInput: 1, BackwardWeight: -1}
)

// InFlight is, per device, the largest number of micro-batches held at once between their forward and their backward (to the
// weight half, when it is split), counted on each of its stages.
func InFlight(plan Plan) []int {
	return peaks(plan, len(plan), &inFlightBy, func(d int, _ Op) int { return d })
}

// InFlightByStage is, per stage, the largest number of micro-batches it holds at once between their forward and their backward.
// Of several stages on a device, the sum can be more than InFlight, since they need not peak at one time.
//
// The link between a stage and the next never holds more messages, whatever the timing: an activation that the next stage has not
// taken, and a gradient that this stage has not taken, are of a micro-batch that is in flight here.
func InFlightByStage(plan Plan) []int { return peaks(plan, plan.Stages(), &inFlightBy, ofStage) }

// HalvesByStage is, per stage, the largest number of micro-batches at once between the input half and the weight half of
// their backward: 0 where every backward is whole.
func HalvesByStage(plan Plan) []int { return peaks(plan, plan.Stages(), &halvesBy, ofStage) }

// Handed is, per stage, how many micro-batches at once have their input in memory that the stage shares with the one before, and how many their
// output in that which it shares with the one after: 0 where the two devices, rows of the plan, do not share memory. An output stays until the
// stage after has run the backward, or its weight half, and the gradient of an input until the stage before has.
func Handed(plan Plan, share func(device, other int) bool) (inputs, outputs []int) {
	rows, inFlight, halves := plan.Placement(), InFlightByStage(plan), HalvesByStage(plan)
	inputs, outputs = make([]int, len(rows)), make([]int, len(rows))
	for k := range len(rows) - 1 {
		if share(rows[k], rows[k+1]) {
			outputs[k], inputs[k+1] = inFlight[k]+halves[k+1], inFlight[k]
		}
	}
	return inputs, outputs
}

// Landed is, per stage, how many inputs, and gradients of outputs, at once lie in its memory as copies of what a stage on another device has
// handed over: 0 where boundaries between the two devices, rows of the plan, are not copied so. It is as many as the stage works with, and one more,
// which arrives meanwhile; those that Handed counts stay where they were made until a copy has ended.
func Landed(plan Plan, copied func(device, other int) bool) (inputs, gradients []int) {
	rows, inFlight, halves := plan.Placement(), InFlightByStage(plan), HalvesByStage(plan)
	inputs, gradients = make([]int, len(rows)), make([]int, len(rows))
	for k := range len(rows) - 1 {
		if copied(rows[k], rows[k+1]) {
			inputs[k+1], gradients[k] = min(inFlight[k]+halves[k+1], inFlight[k+1]+1), min(inFlight[k], halves[k]+2)
		}
	}
	return inputs, gradients
}

func ofStage(_ int, op Op) int { return op.Stage }

// peaks are those of n counts that ops change: each op the one that of names.
func peaks(plan Plan, n int, by *[kinds]int, of func(device int, op Op) int) []int {
	counts, peaks := make([]int, n), make([]int, n)
	for d, ops := range plan {
		for _, op := range ops {
			i := of(d, op)
			counts[i] += by[op.Kind]
			peaks[i] = max(peaks[i], counts[i])
		}
	}
	return peaks
}

// VersionsByStage is, per stage, the largest number of versions of its weights kept at once: the newest, and each older one
// until the last backward that reads it. 1 in a plan without updates. The plan must have passed Check.
func VersionsByStage(plan Plan) []int {
	kept := repeat(1, plan.Stages())
	peaks := slices.Clone(kept)
	if plan.Updates() == 0 {
		return peaks
	}
	for _, row := range plan {
		for i, change := range versionChanges(row) {
			s := row[i].Stage
			if change.copies {
				kept[s]++
				peaks[s] = max(peaks[s], kept[s])
			}
			kept[s] -= int(change.frees)
		}
	}
	return peaks
}

// versionChange is what an op does to the versions of its stage's weights.
type versionChange struct {
	copies bool // an update that must leave the version before it in place
	frees  int8 // versions that nothing needs after the op
}

// stageVersions is who needs the versions of one stage's weights.
type stageVersions struct {
	reads []int // of each micro-batch that has begun: the version
	last  []int // of each version: position of the last op that needs it, -1 for none
}

// versionChanges finds, for a device's row, where versions of weights appear and when nothing needs them any more: neither a
// forward that reads them, nor the backward of the same micro-batch, nor the update that makes the next version.
func versionChanges(row []Op) []versionChange {
	stages := make(map[int]*stageVersions)
	for i, op := range row {
		s := stages[op.Stage]
		if s == nil {
			s = &stageVersions{last: []int{-1}}
			stages[op.Stage] = s
		}
		switch op.Kind {
		case Forward:
			s.reads = append(s.reads, make([]int, max(0, op.Micro+1-len(s.reads)))...)
			s.reads[op.Micro] = op.Version
			s.last[op.Version] = i
		case Backward, BackwardInput, BackwardWeight:
			s.last[s.reads[op.Micro]] = i
		case Update:
			s.last = append(s.last, -1)
		}
	}
	changes := make([]versionChange, len(row))
	updates := make(map[int]int) // of a stage, so far
	for i, op := range row {
		if op.Kind != Update {
			continue
		}
		if until := stages[op.Stage].last[updates[op.Stage]]; until > i {
			changes[i].copies = true
			changes[until].frees++
		}
		updates[op.Stage]++
	}
	return changes
}

// GradientDelay is, per stage, the most updates that the weights take between a gradient's forward and the update that applies
// it, which itself does not count: 0 in a plan without updates. The plan must have passed Check.
func GradientDelay(plan Plan) []int {
	delays, updated, taken := make([]int, plan.Stages()), make([]int, plan.Stages()), make([]int, plan.Stages())
	for _, row := range plan {
		reads := make(map[[2]int]int) // of a stage and a micro-batch: the version
		for _, op := range row {
			switch s := op.Stage; op.Kind {
			case Forward:
				reads[[2]int{s, op.Micro}] = op.Version
			case Update:
				for ; taken[s] <= op.Micro; taken[s]++ {
					delays[s] = max(delays[s], updated[s]-reads[[2]int{s, taken[s]}])
				}
				updated[s]++
			case Backward, BackwardInput, BackwardWeight:
			}
		}
	}
	return delays
}

// Warmup is, per device, the number of forwards before the first backward, on all of its stages.
func Warmup(plan Plan) []int {
	warmups := make([]int, len(plan))
	for d, ops := range plan {
		for _, op := range ops {
			if op.Kind != Forward {
				break
			}
			warmups[d]++
		}
	}
	return warmups
}
