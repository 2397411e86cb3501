package schedule

import "fmt"

// gpipe runs all forwards, then all backwards (GPipe: Huang et al. 2019, figure 2c; its backwards here in the order of the
// forwards). All M micro-batches are in flight on every stage; the bubble is (K-1)/(M+K-1) of the time.
//
// With links as slow as a forward or a backward:
//
//	time     0              5              10             15             20
//	stage 0  F0 F1 F2 F3 F4 F5 ........................B0 B1 B2 B3 B4 B5   busy  60%, 6 in flight
//	stage 1  ......F0 F1 F2 F3 F4 F5 ............B0 B1 B2 B3 B4 B5 ......  busy  60%, 6 in flight
//	stage 2  ............F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5 ............  busy  60%, 6 in flight
//	batch time 20, bubble 40.0%
func gpipe(r Request) (Plan, string) {
	return forwardsAhead(repeat(r.MicroBatches, r.Devices), r.MicroBatches),
		fmt.Sprintf("all %d forwards before the first backward: links are hidden, all micro-batches are in flight on every stage", r.MicroBatches)
}
