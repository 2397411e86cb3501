package schedule

import "fmt"

// oneForwardOneBackward runs just the forwards that reach the last stage, then a backward and a forward in turn (DAPPLE:
// Fan et al. 2021, section 3; PipeDream-flush: Narayanan et al. 2021, section 3.2). Stage k of K has min(M, K-k)
// micro-batches in flight, the least that keeps all stages busy where links cost nothing.
//
// With links as slow as a forward or a backward:
//
//	time     0              5              10             15             20             25
//	stage 0  F0 F1 F2 ..................B0 F3 B1 F4 ......B2 F5 ......B3 ...B4 .........B5   busy  46%, 3 in flight
//	stage 1  ......F0 F1 .........B0 F2 B1 ......F3 B2 F4 ......B3 F5 B4 .........B5 ......  busy  46%, 2 in flight
//	stage 2  ............F0 B0 F1 B1 ......F2 B2 ......F3 B3 F4 B4 ......F5 B5 ............  busy  46%, 1 in flight
//	batch time 26, bubble 53.8%
func oneForwardOneBackward(r Request) (Plan, string) {
	warmups := leastWarmups(r)
	return forwardsAhead(warmups, r.MicroBatches),
		fmt.Sprintf("warm-up %s, the least that keeps every stage busy where links cost nothing", joinInts(warmups))
}

// leastWarmups are the forwards that reach the last stage, of each stage.
func leastWarmups(r Request) []int { return warmupsOf(repeat(1, r.Devices-1), r.MicroBatches) }
