package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomPlan orders each stage at random, micro-batches in order and each backward after its forward. It may deadlock.
func randomPlan(r *rand.Rand, stages, microBatches int) Plan {
	placement := make([]int, stages)
	for s := range placement {
		placement[s] = s
	}
	return randomPlacedPlan(r, placement, microBatches)
}

// randomPlacedPlan is a randomPlan with stage s on device placement[s]; the stages of a device take turns at random.
func randomPlacedPlan(r *rand.Rand, placement []int, microBatches int) Plan {
	plan := make(Plan, slices.Max(placement)+1)
	for d := range plan {
		var stages []int
		for s, home := range placement {
			if home == d {
				stages = append(stages, s)
			}
		}
		forwards, backwards := make([]int, len(placement)), make([]int, len(placement))
		for len(stages) > 0 {
			i := r.IntN(len(stages))
			s := stages[i]
			if forwards[s] < microBatches && (forwards[s] == backwards[s] || r.IntN(2) == 0) {
				plan[d] = append(plan[d], Op{Kind: Forward, Stage: s, Micro: forwards[s]})
				forwards[s]++
			} else {
				plan[d] = append(plan[d], Op{Kind: Backward, Stage: s, Micro: backwards[s]})
				backwards[s]++
			}
			if backwards[s] == microBatches {
				stages = slices.Delete(stages, i, i+1)
			}
		}
	}
	return plan
}

// randomRunnablePlan is the order in which a random execution without any order of its own runs the work: it has no deadlock.
func randomRunnablePlan(r *rand.Rand, placement []int, microBatches int) Plan {
	plan := make(Plan, slices.Max(placement)+1)
	forwards, backwards := make([]int, len(placement)), make([]int, len(placement))
	last := len(placement) - 1
	for backwards[0] < microBatches {
		s := r.IntN(len(placement))
		op := Op{Kind: Forward, Stage: s, Micro: forwards[s]}
		switch {
		case r.IntN(2) == 0 && backwards[s] < forwards[s] && (s == last || backwards[s] < backwards[s+1]):
			op.Kind, op.Micro = Backward, backwards[s]
			backwards[s]++
		case forwards[s] < microBatches && (s == 0 || forwards[s] < forwards[s-1]):
			forwards[s]++
		default:
			continue
		}
		plan[placement[s]] = append(plan[placement[s]], op)
	}
	return plan
}

// randomPlacement puts stages on devices of their own, or in a V, or interleaved, or at random.
func randomPlacement(r *rand.Rand) []int {
	devices := 1 + r.IntN(3)
	placement := make([]int, devices, 2*devices)
	for s := range placement {
		placement[s] = s
	}
	switch r.IntN(4) {
	case 0:
		for d := devices - 1; d >= 0; d-- {
			placement = append(placement, d)
		}
	case 1:
		for d := range devices {
			placement = append(placement, d)
		}
	case 2:
		placement = append(placement, r.IntN(devices))
		r.Shuffle(len(placement), func(i, j int) { placement[i], placement[j] = placement[j], placement[i] })
	}
	return placement
}

// explorer visits every state that a plan can reach under any timing, by the definition of links and devices alone: the
// oracle for Check and InFlightByStage.
type explorer struct {
	plan  Plan
	home  []int
	seen  map[string]bool
	peaks []int // per link s -> s+1: messages on their way in one direction
	stuck bool  // a state was reached in which work is left and nothing can go on
}

func explore(plan Plan) *explorer {
	e := &explorer{plan: plan, home: plan.Placement(), seen: make(map[string]bool), peaks: make([]int, plan.Stages()-1)}
	e.visit(make([]int, len(plan)))
	return e
}

// crossed counts the ops of kind that stage s has run.
func (e *explorer) crossed(state []int, s int, kind Kind) int {
	n := 0
	for _, op := range e.plan[e.home[s]][:state[e.home[s]]] {
		if op.Stage == s && op.Kind == kind {
			n++
		}
	}
	return n
}

// inFlight counts the messages of kind on their way from stage `from` to its neighbour.
func (e *explorer) inFlight(state []int, from, to int, kind Kind) int {
	return e.crossed(state, from, kind) - e.crossed(state, to, kind)
}

func (e *explorer) visit(state []int) {
	key := fmt.Sprint(state)
	if e.seen[key] {
		return
	}
	e.seen[key] = true
	for s := range e.peaks {
		e.peaks[s] = max(e.peaks[s], e.inFlight(state, s, s+1, Forward), e.inFlight(state, s+1, s, Backward))
	}
	moved, left := false, false
	for d := range state {
		if state[d] == len(e.plan[d]) {
			continue
		}
		left = true
		if e.canMove(state, d) {
			moved = true
			after := slices.Clone(state)
			after[d]++
			e.visit(after)
		}
	}
	e.stuck = e.stuck || left && !moved
}

// canMove reports whether device d can run its next op.
func (e *explorer) canMove(state []int, d int) bool {
	op := e.plan[d][state[d]]
	from := op.Stage - 1
	if op.Kind == Backward {
		from = op.Stage + 1
	}
	return from < 0 || from == len(e.home) || e.inFlight(state, from, op.Stage, op.Kind) > 0
}

func TestCheckFindsADeadlockExactlyWhereSomeTimingHasOne(t *testing.T) {
	r := rand.New(rand.NewPCG(2024, 1))
	verdicts := make(map[string]int)
	for range 600 {
		microBatches := 1 + r.IntN(3)
		plan := randomPlacedPlan(r, randomPlacement(r), microBatches)
		want := explore(plan).stuck
		if err := Check(plan, microBatches); (err != nil) != want {
			t.Fatalf("%v\nreaches a deadlock: %v; Check says %v", plan, want, err)
		}
		verdicts[fmt.Sprintf("%s, deadlock %v", plan.rowName(), want)]++
	}
	if len(verdicts) != 4 {
		t.Errorf("the random plans have only %v", verdicts)
	}
}

// TestLinksHoldNoMoreThanTheStageBeforeThemHasInFlight under any timing, and just as much where whole backwards follow a warm-up.
func TestLinksHoldNoMoreThanTheStageBeforeThemHasInFlight(t *testing.T) {
	r := rand.New(rand.NewPCG(2024, 2))
	plans := make(map[string]int)
	for i := range 800 {
		microBatches := 1 + r.IntN(4)
		plan := randomPlacedPlan(r, randomPlacement(r), microBatches)
		if i%2 == 0 {
			plan = randomRunnablePlan(r, randomPlacement(r), microBatches)
		}
		if Check(plan, microBatches) != nil {
			continue
		}
		plans[plan.rowName()]++
		inFlight := InFlightByStage(plan)
		for s, peak := range explore(plan).peaks {
			if peak > inFlight[s] {
				t.Fatalf("%v\nlink %d holds %d messages; stage %d has %d in flight", plan, s, peak, s, inFlight[s])
			}
		}
	}
	if plans[stageRow] < 50 || plans[deviceRow] < 50 {
		t.Errorf("only %v plans without deadlock", plans)
	}
	for _, name := range []string{"gpipe", "1f1b", "afp"} {
		plan := mustGenerate(t, name, Request{Devices: 3, MicroBatches: 5})
		if got, want := explore(plan).peaks, InFlightByStage(plan)[:2]; !slices.Equal(got, want) {
			t.Errorf("%s: links hold %v messages; want %v", name, got, want)
		}
	}
}
