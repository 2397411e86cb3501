package schedule

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/words"
)

// pipeDream2BW is 1f1b that steps the optimizer after every group of micro-batches and does not drain for it, with two versions of the
// weights (PipeDream-2BW: Narayanan et al. 2021, section 3.1): the micro-batches of group g read the weights after g-1 updates (those of
// the first group the ones that the plan starts with), on all stages alike, so a gradient is applied one update late.
//
// A group is the smallest divisor of M that is K or more, else the whole batch: a stage has no more micro-batches in flight than a group has, or
// a third version would have to be kept. The pipeline drains where a round ends: averaging, evaluation and commits need stages that agree.
//
// Free links, updates as long as a forward:
//
//	time     0         2         4         6         8         10        12        14        16        18        20        22        24        26        28        30        32        34        36
//	stage 0  F0-- F1-- F2-- ....................B0------- F3-- B1------- F4-- B2------- U2-- F5-- B3------- F6@1 B4------- F7@1 B5------- U5-- F8@1 B6------- .....B7------- .....B8------- U8--   busy  83%, 3 in flight
//	stage 1  .....F0-- F1-- ..........B0------- F2-- B1------- F3-- B2------- U2-- F4-- B3------- F5-- B4------- F6@1 B5------- U5-- F7@1 B6------- F8@1 B7------- .....B8------- U8-- ..........  busy  83%, 2 in flight
//	stage 2  ..........F0-- B0------- F1-- B1------- F2-- B2------- U2-- F3-- B3------- F4-- B4------- F5-- B5------- U5-- F6@1 B6------- F7@1 B7------- F8@1 B8------- U8-- ....................  busy  83%, 1 in flight
//	batch time 36, bubble 16.7%
func pipeDream2BW(r Request) (Plan, string) {
	group := updateGroup(r)
	plan := updating(r, leastWarmups(r), group, func(_, m int) int { return max(0, m/group-1) })
	if group == r.MicroBatches && r.across() == 1 {
		return plan, fmt.Sprintf("one update in a batch, as 1f1b: %s are one group of at least %d, use %d or more that divide by %d for more updates",
			words.Count(r.MicroBatches, "micro-batch"), r.Devices, 2*r.Devices, r.Devices)
	}
	return plan, fmt.Sprintf("an update every %s: two versions of the weights, gradients one update late", words.Count(group, "micro-batch")) +
		acrossReason(r)
}

// updateGroup is the smallest divisor of M that is K or more, M where there is none.
func updateGroup(r Request) int {
	for group := r.Devices; group < r.MicroBatches; group++ {
		if r.MicroBatches%group == 0 {
			return group
		}
	}
	return r.MicroBatches
}
