package schedule

import "fmt"

// pipeDream is 1f1b that steps the optimizer after each backward and does not drain for it (PipeDream: Narayanan et al. 2019,
// section 3.3, weight stashing). A forward reads the newest weights of its stage and its backward the same ones, so stage k of K,
// from 0, keeps K-k versions, and the update that applies a gradient comes K-1-k updates after the weights it was taken at. Stages
// read different versions for one micro-batch, as in the paper without vertical sync.
//
// The pipeline drains where a round ends: averaging, evaluation and commits need stages that agree. Until then batches follow each other
// as micro-batches do.
//
// Free links, updates as long as a forward:
//
//	time     0         2         4         6         8         10        12        14        16        18        20        22        24        26        28        30
//	stage 0  F0-- F1-- F2-- ....................B0------- U0-- F3@1 B1------- U1-- F4@2 B2------- U2-- F5@3 B3------- U3-- .....B4------- U4-- .....B5------- U5--   busy  80%, 3 in flight
//	stage 1  .....F0-- F1-- ..........B0------- U0-- F2@1 B1------- U1-- F3@2 B2------- U2-- F4@3 B3------- U3-- F5@4 B4------- U4-- .....B5------- U5-- ..........  busy  80%, 2 in flight
//	stage 2  ..........F0-- B0------- U0-- F1@1 B1------- U1-- F2@2 B2------- U2-- F3@3 B3------- U3-- F4@4 B4------- U4-- F5@5 B5------- U5-- ....................  busy  80%, 1 in flight
//	batch time 30, bubble 20.0%
func pipeDream(r Request) (Plan, string) {
	warmups := warmupsOf(repeat(1, r.Devices-1), r.across()*r.MicroBatches)
	plan := updating(r, warmups, 1, func(warmup, m int) int { return max(0, m-warmup+1) })
	return plan, fmt.Sprintf("an update after each micro-batch: stages keep %s versions of their weights", joinInts(VersionsByStage(plan))) +
		acrossReason(r)
}

// updating is 1f1b of such warm-ups that updates after every group of micro-batches. read says which version the forward of a micro-batch reads
// on a stage.
func updating(r Request, warmups []int, group int, read func(warmup, m int) int) Plan {
	return inTurn(warmups, r.across()*r.MicroBatches, func(k, m int) int { return read(warmups[k], m) }, func(ops []Op, k, m int) []Op {
		ops = append(ops, Op{Kind: Backward, Stage: k, Micro: m})
		if (m+1)%group == 0 {
			ops = append(ops, Op{Kind: Update, Stage: k, Micro: m})
		}
		return ops
	})
}
