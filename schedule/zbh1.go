package schedule

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/words"
)

// zeroBubbleH1 splits each backward, so that the half that no other stage waits for, of the weights, fills the bubbles of
// 1f1b at 1f1b's memory (Qi et al. 2024, ZB-H1, section 2.1). Device i of K runs K-1-i forwards ahead and leaves i weight halves for
// the end; each has K micro-batches in flight. With all three parts of equal time, the bubble is a third of that of 1f1b.
//
// Free links, halves as long as a forward:
//
//	time     0              5              10             15             20
//	stage 0  F0 F1 F2 ......I0 W0 F3 I1 W1 F4 I2 W2 F5 I3 W3 I4 W4 I5 W5   busy  90%, 3 in flight
//	stage 1  ...F0 F1 ...I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 F5 I4 W3 I5 W4 W5   busy  90%, 3 in flight
//	stage 2  ......F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 F5 I5 W3 W4 W5   busy  90%, 3 in flight
//	batch time 20, bubble 10.0%
func zeroBubbleH1(r Request) (Plan, string) {
	reason := "weight halves fill the bubbles of 1f1b at the memory of its first stage: a third of its bubble where halves and forwards take the same time"
	return splitAhead(r, 1), reason + tooFew(r, r.Devices, "")
}

// splitAhead is the order that zb-h1 and zb-h2 share, whose device i runs depth*(K-1-i) forwards ahead and lags depth*i weight halves
// behind the input halves:
//
//	F0 .. Fw;  for j = 0..M-1: Ij, W(j-lag) if there is one, F(w+1+j) if there is one;  the last W
func splitAhead(r Request, depth int) Plan {
	warmups := make([]int, r.Devices)
	for d := range warmups {
		warmups[d] = min(r.MicroBatches, depth*(r.Devices-1-d)+1)
	}
	return inTurn(warmups, r.MicroBatches, nil, func(ops []Op, d, m int) []Op {
		ops = append(ops, Op{Kind: BackwardInput, Stage: d, Micro: m})
		last := m - depth*d
		if m == r.MicroBatches-1 {
			last = m
		}
		for w := max(0, m-depth*d); w <= last; w++ {
			ops = append(ops, Op{Kind: BackwardWeight, Stage: d, Micro: w})
		}
		return ops
	})
}

// tooFew says so where a schedule needs so many micro-batches for what it promises, and what is better with fewer.
func tooFew(r Request, least int, instead string) string {
	if r.MicroBatches >= least {
		return ""
	}
	if instead != "" {
		instead = fmt.Sprintf(", with fewer %s is as fast or faster", instead)
	}
	return fmt.Sprintf("; it takes %s for that and has %d%s", words.Count(least, "micro-batch"), r.MicroBatches, instead)
}
