package schedule

import "fmt"

// pipeDream is 1f1b that steps the optimizer after each backward and does not drain for it (PipeDream: Narayanan et al. 2019,
// section 3.3, weight stashing). A forward reads the newest weights of its stage and its backward the same ones, so stage k of K,
// from 0, keeps K-k versions, and the update that applies a gradient comes K-1-k updates after the weights it was taken at. Stages
// read different versions for one micro-batch, as in the paper without vertical sync.
//
// The pipeline drains where the batch ends: averaging and commits need stages that agree.
//
// Free links, updates as long as a forward:
//
//	time     0         2         4         6         8         10        12        14        16        18        20        22        24        26        28        30
//	stage 0  F0-- F1-- F2-- ....................B0------- U0-- F3@1 B1------- U1-- F4@2 B2------- U2-- F5@3 B3------- U3-- .....B4------- U4-- .....B5------- U5--   busy  80%, 3 in flight
//	stage 1  .....F0-- F1-- ..........B0------- U0-- F2@1 B1------- U1-- F3@2 B2------- U2-- F4@3 B3------- U3-- F5@4 B4------- U4-- .....B5------- U5-- ..........  busy  80%, 2 in flight
//	stage 2  ..........F0-- B0------- U0-- F1@1 B1------- U1-- F2@2 B2------- U2-- F3@3 B3------- U3-- F4@4 B4------- U4-- F5@5 B5------- U5-- ....................  busy  80%, 1 in flight
//	batch time 30, bubble 20.0%
func pipeDream(r Request) (Plan, string) {
	plan := make(Plan, r.Devices)
	for k := range plan {
		plan[k] = updatingOrder(r, k, func(int) bool { return true }, func(_, updated int) int { return updated })
	}
	return plan, fmt.Sprintf("an update after each micro-batch, without a drain: stages keep %s versions of their weights", joinInts(VersionsByStage(plan)))
}

// updatingOrder is the list of stage k in a 1f1b pipeline that updates after the backwards that due names. read says which version the
// forward of a micro-batch reads after so many updates.
func updatingOrder(r Request, k int, due func(micro int) bool, read func(micro, updated int) int) []Op {
	warmup := min(r.MicroBatches, r.Devices-k)
	ops := make([]Op, 0, 3*r.MicroBatches)
	updated := 0
	forward := func(m int) {
		ops = append(ops, Op{Kind: Forward, Stage: k, Micro: m, Version: read(m, updated)})
	}
	for m := range warmup {
		forward(m)
	}
	for m := range r.MicroBatches {
		ops = append(ops, Op{Kind: Backward, Stage: k, Micro: m})
		if due(m) {
			ops = append(ops, Op{Kind: Update, Stage: k, Micro: m})
			updated++
		}
		if warmup+m < r.MicroBatches {
			forward(warmup + m)
		}
	}
	return ops
}
