package schedule

// Pinned is, per stage, the largest number of micro-batches held at once between their forward and their backward (to
// the weight half, when it is split).
func Pinned(plan Plan) []int {
	peaks := make([]int, len(plan))
	for k, ops := range plan {
		pinned := 0
		for _, op := range ops {
			pinned += pinnedBy(op.Kind)
			peaks[k] = max(peaks[k], pinned)
		}
	}
	return peaks
}

// pinnedBy is how an op changes the number of pinned micro-batches.
func pinnedBy(k Kind) int {
	switch k {
	case Forward:
		return 1
	case Backward, BackwardWeight:
		return -1
	case BackwardInput, Update:
	}
	return 0
}

// Warmup is, per stage, the number of forwards before the first backward.
func Warmup(plan Plan) []int {
	warmups := make([]int, len(plan))
	for k, ops := range plan {
		for _, op := range ops {
			if op.Kind != Forward {
				break
			}
			warmups[k]++
		}
	}
	return warmups
}

// LinkPeak is the largest number of messages in flight on one link: sent, and not yet taken by the op that consumes them.
type LinkPeak struct {
	Forward  int // activations, stage k -> k+1
	Backward int // gradients, stage k+1 -> k
}

// InFlight is, per link, the peak over every timing the plan allows, however slow a stage is at any point. A queue this
// deep never makes a sender wait. The plan must have passed Check.
func InFlight(plan Plan) []LinkPeak {
	peaks := make([]LinkPeak, max(0, len(plan)-1))
	for k := range peaks {
		peaks[k].Forward = peakInFlight(plan[k], plan[k+1], crossesDown, crossesUp)
		peaks[k].Backward = peakInFlight(plan[k+1], plan[k], crossesUp, crossesDown)
	}
	return peaks
}

// peakInFlight stops the receiver before each of its ops in turn and lets the sender run as far as it can: until it
// needs a reply that the receiver has not sent. The rest of a deadlock-free plan cannot hold the sender back for good.
// Both ends only move forward, so the walk is O(ops).
func peakInFlight(sender, receiver []Op, message, reply func(Kind) bool) int {
	var peak, sent, taken, replies, used, s int
	for r := 0; ; r++ {
		for ; s < len(sender); s++ {
			if reply(sender[s].Kind) {
				if used == replies {
					break
				}
				used++
			} else if message(sender[s].Kind) {
				sent++
			}
		}
		peak = max(peak, sent-taken)
		if r == len(receiver) {
			return peak
		}
		if message(receiver[r].Kind) {
			taken++
		} else if reply(receiver[r].Kind) {
			replies++
		}
	}
}
