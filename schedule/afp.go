package schedule

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// advanceForward is advance forward propagation (AvgPipe: Chen et al. 2023): 1f1b with more forwards ahead, so
// that a stage has work while a message travels. Without costs the warm-up is the published grid, min(M, 2(K-k)+1) for
// k = 1..K; with costs each link gets what hides it, and refine simulates a batch with it and with others near it. So one
// pipeline is never slower in the simulator than by 1f1b nor, within its limits, by gpipe. Several pipelines can be. Stage k has as
// many micro-batches in flight as its warm-up.
//
// With links as slow as a forward or a backward:
//
//	time     0              5              10             15             20
//	stage 0  F0 F1 F2 F3 F4 ............B0 F5 B1 ...B2 ...B3 ...B4 ...B5   busy  60%, 5 in flight
//	stage 1  ......F0 F1 F2 ......B0 F3 B1 F4 B2 F5 B3 ...B4 ...B5 ......  busy  60%, 3 in flight
//	stage 2  ............F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 ............  busy  60%, 1 in flight
//	batch time 20, bubble 40.0%
func advanceForward(r Request) (Plan, string) {
	wanted, reason := publishedWarmups(r), "the published grid (no costs known)"
	if r.Costs != nil {
		wanted = warmupsOf(sizedSteps(*r.Costs, r.Devices, r.MicroBatches), r.MicroBatches)
		reason = "sized to hide each link behind compute"
	}
	warmups, limited := lower(wanted, r)
	if limited >= 0 {
		reason += fmt.Sprintf(", lowered from %s since stage %d has memory for %d in flight", joinInts(wanted), limited, r.InFlightLimit[limited])
		reason += priceOf(wanted, warmups, r)
	}
	if r.Costs != nil {
		var changed string
		warmups, changed = refine(warmups, r)
		reason += changed
	}
	same := ""
	if slices.Equal(warmups, leastWarmups(r)) {
		same = "; the same as 1f1b"
	}
	return forwardsAhead(warmups, r.MicroBatches),
		fmt.Sprintf("warm-up %s, %s%s", joinInts(warmups), reason, same)
}

// priceOf says how much longer a batch takes with a lowered warm-up, where costs can tell and it is a tenth of a percent or more.
func priceOf(wanted, lowered []int, r Request) string {
	if r.Costs == nil {
		return ""
	}
	before, errBefore := SimulateMany(forwardsAhead(wanted, r.MicroBatches), *r.Costs, Load{})
	after, errAfter := SimulateMany(forwardsAhead(lowered, r.MicroBatches), *r.Costs, Load{})
	if errBefore != nil || errAfter != nil || after.Makespan < 1.001*before.Makespan {
		return ""
	}
	return fmt.Sprintf(" (a batch takes %.1f%% longer)", 100*(after.Makespan/before.Makespan-1))
}

// sizedSteps gives each link one micro-batch, as 1f1b does, and as many more as the pipeline works through while a message
// goes there and another comes back: w_k = w_(k+1) + 1 + ceil(2 c_k / (F + B)). Where stages differ, F + B is that of the
// slowest, whose pace all keep: then every term of SteadyPeriod is at most that pace.
func sizedSteps(c Costs, stages, microBatches int) []int {
	slowest := 0.0
	for k := range stages {
		slowest = max(slowest, c.Forward[k]+c.Backward[k])
	}
	steps := make([]int, stages-1)
	for k := range steps {
		steps[k] = 1
		if link := c.link(k); link > 0 {
			steps[k] = int(min(1+math.Ceil(2*link/slowest), float64(microBatches)))
		}
	}
	return steps
}

// publishedWarmups are those of the published grids: two steps a link.
func publishedWarmups(r Request) []int { return warmupsOf(repeat(2, r.Devices-1), r.MicroBatches) }

// warmupsOf sums the steps from the last stage, which runs one forward ahead: w_K = 1, w_k = min(M, w_(k+1) + step_k).
func warmupsOf(steps []int, microBatches int) []int {
	warmups := make([]int, len(steps)+1)
	warmups[len(steps)] = 1
	for k := len(steps) - 1; k >= 0; k-- {
		warmups[k] = min(microBatches, warmups[k+1]+steps[k])
	}
	return warmups
}

// lower brings a warm-up within the limits. A stage below a lowered one runs a forward less ahead than that, at most, so that
// neighbours do not wait for each other; but no stage runs fewer than in 1f1b. It returns the first stage that was lowered to its
// limit, -1 for none.
func lower(wanted []int, r Request) (warmups []int, limited int) {
	warmups, limited = slices.Clone(wanted), -1
	for k := range warmups {
		least := min(r.MicroBatches, r.Devices-k)
		if k > 0 && warmups[k-1] < wanted[k-1] {
			warmups[k] = max(least, min(warmups[k], warmups[k-1]-1))
		}
		if limit := max(least, at(r.InFlightLimit, k)); at(r.InFlightLimit, k) > 0 && limit < warmups[k] {
			warmups[k] = limit
			if limited < 0 {
				limited = k
			}
		}
	}
	return warmups, limited
}

// joinInts prints 4,3,2,1, with the middle of a long list left out.
func joinInts(values []int) string {
	const most = 16
	var words []string
	for i, v := range values {
		if len(values) > most && i == most/2 {
			words = append(words, "...")
		}
		if len(values) <= most || i < most/2 || i >= len(values)-most/2 {
			words = append(words, strconv.Itoa(v))
		}
	}
	return strings.Join(words, ",")
}
