package schedule

import "fmt"

// oneForwardOneBackward runs just the forwards that reach the last stage, then a backward and a forward in turn (DAPPLE:
// Fan et al. 2021, section 3; PipeDream-flush: Narayanan et al. 2021, figure 2). Stage k of K pins min(M, K-k)
// micro-batches, the least that keeps all stages busy where links cost nothing.
func oneForwardOneBackward(r Request) (Plan, string) {
	warmups := make([]int, r.Stages)
	for k := range warmups {
		warmups[k] = min(r.MicroBatches, r.Stages-k)
	}
	return forwardsAhead(warmups, r.MicroBatches),
		fmt.Sprintf("warm-up %s: the least that keeps every stage busy where links cost nothing", joinInts(warmups))
}
