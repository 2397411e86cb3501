package schedule

import (
	"fmt"
	"slices"
)

// What the simulations that check a warm-up may cost, in ops: a plan of more than mostChecked is not simulated at all, and
// trying neighbours ends after mostTried.
const (
	mostChecked = 1 << 22
	mostTried   = 1 << 15
)

// refine simulates a batch with the given warm-up and takes another one if that is faster. The law that sizes warm-ups is about
// the middle of a long batch; where stages differ, filling and draining a short one may want another order. So refine tries the
// warm-ups of 1f1b, of gpipe and of the published grid, and then neighbours of the best: a micro-batch less on one stage, or a
// micro-batch more if that gains a hundredth, until none is better. All of them keep the limits. It lowers what replaces the given
// warm-up again as far as that costs no time. The reason is empty where the given one stays.
func refine(warmups []int, r Request) ([]int, string) {
	if 2*r.Devices*r.MicroBatches > mostChecked {
		return warmups, ""
	}
	t := trial{request: r, left: mostTried, least: leastWarmups(r)}
	t.costs = Costs{
		Forward: r.Costs.Forward, Backward: r.Costs.Backward,
		Link: r.Costs.Link, Bandwidth: r.Costs.Bandwidth, MessageBytes: r.Costs.MessageBytes,
	}
	t.best, t.time = warmups, t.simulate(warmups)
	given := t.time
	for _, other := range [][]int{t.least, repeat(r.MicroBatches, r.Devices), publishedWarmups(r)} {
		t.try(t.within(other), rounding)
	}
	for t.improve() {
	}
	if t.time >= given {
		return warmups, ""
	}
	t.trim()
	return t.best, fmt.Sprintf(", changed from %s since that takes %.2g%% longer in simulation", joinInts(warmups), 100*(given/t.time-1))
}

// trial is a search for the fastest warm-up.
type trial struct {
	request Request
	costs   Costs
	least   []int // the warm-up of 1f1b
	best    []int
	time    float64 // of best
	left    int     // ops that may still be simulated to try neighbours
}

// By how much a warm-up must be faster than the best: one with no more in flight, and one with more.
const (
	rounding = 1e-9
	worth    = 1e-2
)

func (t *trial) simulate(warmups []int) float64 {
	result, err := simulate(forwardsAhead(warmups, t.request.MicroBatches), t.costs, Load{}.withDefaults())
	if err != nil {
		panic(fmt.Sprintf("schedule: warm-up %v: %v", warmups, err)) // it shrinks from stage to stage, so it cannot deadlock
	}
	return result.Makespan
}

// try takes a warm-up if it gains a share of the best one's time; a share below 0 may be lost.
func (t *trial) try(warmups []int, gain float64) bool {
	time := t.simulate(warmups)
	if time > t.time*(1-gain) {
		return false
	}
	t.best, t.time = warmups, min(time, t.time)
	return true
}

// improve tries one less and one more on each stage, and keeps what is better.
func (t *trial) improve() bool {
	improved := false
	for k := range t.best {
		if less, ok := t.step(k, -1); ok && t.try(less, rounding) {
			improved = true
		}
		if more, ok := t.step(k, 1); ok && t.try(more, worth) {
			improved = true
		}
	}
	return improved
}

// trim lowers the best warm-up as far as that costs no time, from the first stage on.
func (t *trial) trim() {
	for k := 0; k < len(t.best); {
		if less, ok := t.step(k, -1); !ok || !t.try(less, -rounding/1e3) {
			k++
		}
	}
}

// step is the best warm-up with so many more on a stage; false if that is none within limits, or tries are used up.
func (t *trial) step(k, more int) ([]int, bool) {
	next := slices.Clone(t.best)
	next[k] += more
	// Stages above may not warm up with fewer, those below not with more, or they wait for each other for ever.
	for above := range k {
		next[above] = max(next[above], next[k])
	}
	for below := k + 1; below < len(next); below++ {
		next[below] = min(next[below], next[k])
	}
	next = t.within(next)
	t.left -= 2 * t.request.Devices * t.request.MicroBatches
	return next, t.left >= 0 && !slices.Equal(next, t.best)
}

// within lowers a warm-up to the batch and to what stages have memory for, and with a stage those below it, but nowhere below 1f1b's.
func (t *trial) within(warmups []int) []int {
	out := slices.Clone(warmups)
	for k := range out {
		out[k] = min(out[k], t.request.MicroBatches)
		if k > 0 {
			out[k] = min(out[k], out[k-1])
		}
		if limits := t.request.InFlightLimit; limits != nil && limits[k] > 0 {
			out[k] = min(out[k], limits[k])
		}
		out[k] = max(out[k], t.least[k])
	}
	return out
}
