package schedule

import "fmt"

// gpipe runs all forwards, then all backwards (GPipe: Huang et al. 2019, figure 2c; its backwards here in the order of the
// forwards). Every stage pins all M micro-batches; the bubble is (K-1)/(M+K-1) of the time.
func gpipe(r Request) (Plan, string) {
	warmups := make([]int, r.Stages)
	for k := range warmups {
		warmups[k] = r.MicroBatches
	}
	return forwardsAhead(warmups, r.MicroBatches),
		fmt.Sprintf("all %d forwards before the first backward: links are hidden, every stage pins all micro-batches", r.MicroBatches)
}
