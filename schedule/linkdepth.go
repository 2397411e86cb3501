package schedule

// LinkPeak is the largest number of messages in flight on one link: sent, and not yet taken by the op that consumes them.
type LinkPeak struct {
	Forward  int // activations, stage s -> s+1
	Backward int // gradients, stage s+1 -> s
}

// LinkDepths is, per link s -> s+1 between stages, the peak over every timing the plan allows, however slow a device is at any
// point; also where both stages are on one device. A queue this deep never makes a sender wait. The plan must have passed
// Check. The work is O(ops) where each device has one stage, in order, else O(devices * ops).
func LinkDepths(plan Plan) []LinkPeak {
	peaks := make([]LinkPeak, max(0, plan.Stages()-1))
	if plan.plain() {
		for k := range peaks {
			peaks[k].Forward = peakInFlight(plan[k], plan[k+1], crossesDown, crossesUp)
			peaks[k].Backward = peakInFlight(plan[k+1], plan[k], crossesUp, crossesDown)
		}
		return peaks
	}
	for d := range plan {
		peaksInto(plan, d, peaks)
	}
	return peaks
}

// peakInFlight stops the receiver before each of its ops in turn and lets the sender run as far as it can: until it
// needs a reply that the receiver has not sent. In a chain, the rest of a deadlock-free plan cannot hold the sender back for
// good. Both ends only move forward, so the walk is O(ops).
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

// peaksInto stops device d before each of its ops in turn, lets all others run as far as they can, and raises the peaks of the
// links into the stages of d. Where devices have several stages, what holds a sender back may come around by way of others.
func peaksInto(plan Plan, d int, peaks []LinkPeak) {
	t := newTraversal(plan, 0)
	var stages []int // of d
	for s, home := range t.home {
		if home == d {
			stages = append(stages, s)
		}
	}
	for t.until[d] = 0; ; t.until[d]++ {
		t.wake(d)
		t.run(func(_, _ int) {})
		for _, s := range stages {
			if s > 0 {
				peaks[s-1].Forward = max(peaks[s-1].Forward, t.activations[s-1].inFlight())
			}
			if s < len(peaks) {
				peaks[s].Backward = max(peaks[s].Backward, t.gradients[s].inFlight())
			}
		}
		if t.until[d] == len(plan[d]) {
			return
		}
	}
}
