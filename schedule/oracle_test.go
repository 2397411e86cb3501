package schedule

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// legal says whether a plan is what Check promises, up to deadlock, from the definitions alone and without regard to cost.
func legal(plan Plan, microBatches int) bool {
	stages := map[int][]Op{}
	home := map[int]int{}
	for d, ops := range plan {
		for _, op := range ops {
			if at, known := home[op.Stage]; known && at != d {
				return false
			}
			home[op.Stage] = d
			stages[op.Stage] = append(stages[op.Stage], op)
		}
	}
	for s := range len(stages) { // 0 and up: a gap leaves one of them without ops
		if !legalStage(stages[s], microBatches) {
			return false
		}
		if s > 0 && !sameOrder(stages[s-1], stages[s]) {
			return false
		}
	}
	return true
}

// sameOrder: what one stage sends, and what updates it takes, its neighbour has in the same order.
func sameOrder(a, b []Op) bool {
	for _, kinds := range [][]Kind{{Forward}, {Backward, BackwardInput}, {Update}} {
		micros := func(ops []Op) []int {
			var list []int
			for _, op := range ops {
				if slices.Contains(kinds, op.Kind) {
					list = append(list, op.Micro)
				}
			}
			return list
		}
		if !slices.Equal(micros(a), micros(b)) {
			return false
		}
	}
	return true
}

// legalStage counts, for each op, what stands before it.
func legalStage(ops []Op, microBatches int) bool {
	count := func(ops []Op, kind Kind, micro int) int {
		n := 0
		for _, op := range ops {
			if op.Kind == kind && (micro < 0 || op.Micro == micro) {
				n++
			}
		}
		return n
	}
	for i, op := range ops {
		before := ops[:i]
		if op.Micro < 0 || op.Micro >= microBatches {
			return false
		}
		switch op.Kind {
		case Forward:
			if op.Version > count(before, Update, -1) {
				return false
			}
		case Backward, BackwardInput:
			if count(before, Forward, op.Micro) == 0 {
				return false
			}
		case BackwardWeight:
			if count(before, BackwardInput, op.Micro) == 0 {
				return false
			}
		case Update:
			for m := range microBatches {
				begun := count(before, Backward, m) + count(before, BackwardInput, m)
				ended := count(before, Backward, m) + count(before, BackwardWeight, m)
				if m <= op.Micro && ended == 0 || m > op.Micro && begun > 0 {
					return false
				}
			}
		}
		if op.Kind != Forward && op.Version != 0 {
			return false
		}
	}
	for m := range microBatches {
		whole, input, weight := count(ops, Backward, m), count(ops, BackwardInput, m), count(ops, BackwardWeight, m)
		if count(ops, Forward, m) != 1 || whole+input != 1 || input != weight || count(ops, Update, m) > 1 {
			return false
		}
	}
	return count(ops, Update, -1) == 0 || count(ops, Update, microBatches-1) == 1
}

// mutate changes a plan at one or two random places.
func mutate(r *rand.Rand, plan Plan) Plan {
	changed := make(Plan, len(plan))
	for d := range plan {
		changed[d] = slices.Clone(plan[d])
	}
	for range 1 + r.IntN(2) {
		d := r.IntN(len(changed))
		i, j := r.IntN(len(changed[d])), r.IntN(len(changed[d]))
		op := &changed[d][i]
		switch r.IntN(7) {
		case 0:
			changed[d][i], changed[d][j] = changed[d][j], changed[d][i]
		case 1:
			if j = i + 1; j < len(changed[d]) {
				changed[d][i], changed[d][j] = changed[d][j], changed[d][i]
			}
		case 2:
			op.Micro = max(0, op.Micro+r.IntN(3)-1)
		case 3:
			op.Kind = Kind(r.IntN(len(kindLetters)))
		case 4:
			op.Version = max(0, op.Version+r.IntN(3)-1)
		case 5:
			op.Stage = r.IntN(plan.Stages() + 1)
		case 6:
			if len(changed[d]) > 1 {
				changed[d] = slices.Delete(changed[d], i, i+1)
			}
		}
	}
	return changed
}

// TestCheckAgreesWithTheDefinitions on plans that are almost right: generated, and changed at random places.
func TestCheckAgreesWithTheDefinitions(t *testing.T) {
	r := rand.New(rand.NewPCG(2026, 1))
	verdicts := make(map[bool]int)
	for range 6000 {
		name := Names()[r.IntN(len(Names()))]
		microBatches := 1 + r.IntN(6)
		plan := mutate(r, mustGenerate(t, name, Request{Devices: 1 + r.IntN(3), MicroBatches: microBatches}))
		want := legal(plan, microBatches)
		err := Check(plan, microBatches)
		if fault, ok := errors.AsType[*PlanError](err); want && ok && fault.Problem == Deadlock {
			continue // of which the definitions say nothing
		}
		if (err == nil) != want {
			t.Fatalf("%s, changed, %d micro-batches:\n%v\nis legal: %v; Check says %v", name, microBatches, plan, want, err)
		}
		verdicts[want]++
	}
	if verdicts[true] < 300 || verdicts[false] < 300 {
		t.Errorf("legal or not: %v of 6000 plans; want some hundreds of each", verdicts)
	}
}

// TestVersionsKeptAreThoseThatAreReadLater, counted at every point of random plans with updates: the newest, and each that a later op
// of the stage reads. A gradient is late by the updates between the version that it read and the one that takes it.
func TestVersionsKeptAreThoseThatAreReadLater(t *testing.T) {
	r := rand.New(rand.NewPCG(2026, 2))
	several := 0
	for range 2000 {
		microBatches := 1 + r.IntN(10)
		ops := randomUpdates(r, microBatches)
		plan := Plan{ops}
		if err := Check(plan, microBatches); err != nil {
			t.Fatalf("%v\n%v", plan, err)
		}
		read := make(map[int]int) // micro-batch -> version
		for _, op := range ops {
			if op.Kind == Forward {
				read[op.Micro] = op.Version
			}
		}
		want, newest, late, taken := 1, 0, 0, 0
		for i, op := range ops {
			if op.Kind == Update {
				for ; taken <= op.Micro; taken++ { // the weights of version newest take it
					late = max(late, newest-read[taken])
				}
				newest++
			}
			kept := map[int]bool{newest: true}
			for _, later := range ops[i+1:] {
				if v := read[later.Micro]; later.Kind != Update && v <= newest {
					kept[v] = true
				}
			}
			want = max(want, len(kept))
		}
		if got := VersionsByStage(plan)[0]; got != want {
			t.Fatalf("%v\nkeeps %d versions; want %d", plan, got, want)
		}
		if got := GradientDelay(plan)[0]; got != late {
			t.Fatalf("%v\ngradients are %d updates late; want %d", plan, got, late)
		}
		if want > 2 {
			several++
		}
	}
	if several < 100 {
		t.Errorf("only %d of 2000 plans keep more than two versions", several)
	}
}

// randomUpdates is a list of one stage with updates at random places, whose forwards read any version that exists.
func randomUpdates(r *rand.Rand, microBatches int) []Op {
	var ops []Op
	forwards, updates := 0, 0
	for m := range microBatches {
		for forwards <= m || forwards < microBatches && r.IntN(2) == 0 {
			ops = append(ops, Op{Kind: Forward, Micro: forwards, Version: max(0, updates-r.IntN(4))})
			forwards++
		}
		ops = append(ops, Op{Kind: Backward, Micro: m})
		if m == microBatches-1 || r.IntN(2) == 0 {
			ops = append(ops, Op{Kind: Update, Micro: m})
			updates++
		}
	}
	return ops
}
