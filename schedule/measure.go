package schedule

// InFlight is, per device, the largest number of micro-batches held at once between their forward and their backward (to the
// weight half, when it is split), counted on each of its stages.
func InFlight(plan Plan) []int {
	peaks := make([]int, len(plan))
	for d, ops := range plan {
		inFlight := 0
		for _, op := range ops {
			inFlight += inFlightBy(op.Kind)
			peaks[d] = max(peaks[d], inFlight)
		}
	}
	return peaks
}

// InFlightByStage is, per stage, the largest number of micro-batches it holds at once between their forward and their backward.
// Of several stages on a device, the sum can be more than InFlight, since they need not peak at one time.
func InFlightByStage(plan Plan) []int { return peaksByStage(plan, inFlightBy) }

// HalvesByStage is, per stage, the largest number of micro-batches at once between the input half and the weight half of
// their backward: 0 where every backward is whole.
func HalvesByStage(plan Plan) []int {
	return peaksByStage(plan, func(k Kind) int {
		switch k {
		case BackwardInput:
			return 1
		case BackwardWeight:
			return -1
		case Forward, Backward, Update:
		}
		return 0
	})
}

// peaksByStage is the peak of a count that each op of a stage changes.
func peaksByStage(plan Plan, change func(Kind) int) []int {
	counts, peaks := make([]int, plan.Stages()), make([]int, plan.Stages())
	for _, ops := range plan {
		for _, op := range ops {
			counts[op.Stage] += change(op.Kind)
			peaks[op.Stage] = max(peaks[op.Stage], counts[op.Stage])
		}
	}
	return peaks
}

// inFlightBy is how an op changes the number of in flight micro-batches.
func inFlightBy(k Kind) int {
	switch k {
	case Forward:
		return 1
	case Backward, BackwardWeight:
		return -1
	case BackwardInput, Update:
	}
	return 0
}

// VersionsByStage is, per stage, the largest number of versions of its weights kept at once: the newest, and each older one
// until the last backward that reads it. 1 in a plan without updates. The plan must have passed Check.
func VersionsByStage(plan Plan) []int {
	work := plan.byStage()
	peaks := make([]int, len(work))
	for s, w := range work {
		peaks[s] = 1
		walkVersions(plan[w.device], w.at, func(_, kept int) { peaks[s] = max(peaks[s], kept) })
	}
	return peaks
}

// walkVersions calls found after each update of a stage, whose ops stand at the positions at, with the update's position and
// the number of versions of the weights that are kept from then on.
func walkVersions(ops []Op, at []int32, found func(position, kept int)) {
	updates, micros := 0, 0
	for _, i := range at {
		switch ops[i].Kind {
		case Update:
			updates++
		case Forward:
			micros++
		case Backward, BackwardInput, BackwardWeight:
		}
	}
	if updates == 0 {
		return
	}
	version := make([]int, micros)       // per micro-batch: that it reads
	lastRead := make([]int32, updates+1) // per version: position of the last op that reads it
	for v := range lastRead {
		lastRead[v] = -1
	}
	for _, i := range at {
		op := ops[i]
		if op.Kind == Forward {
			version[op.Micro] = op.Version
		}
		if op.Kind != Update {
			lastRead[version[op.Micro]] = i
		}
	}
	newest, kept := 0, 1
	for _, i := range at {
		op := ops[i]
		switch {
		case op.Kind == Update:
			if lastRead[newest] > i {
				kept++
			}
			newest++
			found(int(i), kept)
		case lastRead[version[op.Micro]] == i && version[op.Micro] < newest:
			kept--
		}
	}
}

// GradientDelay is, per stage, the most updates that the weights take between a gradient's forward and the update that applies
// it, which itself does not count: 0 in a plan without updates. The plan must have passed Check.
func GradientDelay(plan Plan) []int {
	work := plan.byStage()
	delays := make([]int, len(work))
	for s, w := range work {
		updated, taken := 0, 0
		version := make(map[int]int) // of the micro-batches that no update has taken yet
		for _, i := range w.at {
			switch op := plan[w.device][i]; op.Kind {
			case Forward:
				version[op.Micro] = op.Version
			case Update:
				for ; taken <= op.Micro; taken++ {
					delays[s] = max(delays[s], updated-version[taken])
					delete(version, taken)
				}
				updated++
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
