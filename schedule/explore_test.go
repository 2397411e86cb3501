package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// randomPlan orders each stage at random, micro-batches in order and each backward after its forward. It may deadlock.
func randomPlan(r *rand.Rand, stages, microBatches int) Plan {
	plan := make(Plan, stages)
	for k := range plan {
		forwards, backwards := 0, 0
		for backwards < microBatches {
			if forwards < microBatches && (forwards == backwards || r.IntN(2) == 0) {
				plan[k] = append(plan[k], Op{Kind: Forward, Stage: k, Micro: forwards})
				forwards++
			} else {
				plan[k] = append(plan[k], Op{Kind: Backward, Stage: k, Micro: backwards})
				backwards++
			}
		}
	}
	return plan
}

// explorer visits every state that a plan can reach under any timing, by the definition of links and stages alone: the
// oracle for the walks of Check and InFlight.
type explorer struct {
	plan  Plan
	depth int
	seen  map[string]bool
	peaks []LinkPeak
	stuck bool // a state was reached in which work is left and nothing can go on
}

// stageState is how far a stage is. holding: the op at next has taken its message and has not sent its own.
type stageState struct {
	next    int
	holding bool
}

func explore(plan Plan, depth int) *explorer {
	e := &explorer{plan: plan, depth: depth, seen: make(map[string]bool), peaks: make([]LinkPeak, len(plan)-1)}
	e.visit(make([]stageState, len(plan)))
	return e
}

// crossed counts the ops of kind that stage k has begun, or ended.
func (e *explorer) crossed(k int, s stageState, kind Kind, ended bool) int {
	n := 0
	for i, op := range e.plan[k] {
		begun := i < s.next || i == s.next && s.holding
		if op.Kind == kind && (i < s.next || begun && !ended) {
			n++
		}
	}
	return n
}

// inFlight counts the messages of kind on their way from stage `from` to its neighbour.
func (e *explorer) inFlight(state []stageState, from, to int, kind Kind) int {
	return e.crossed(from, state[from], kind, true) - e.crossed(to, state[to], kind, false)
}

func (e *explorer) visit(state []stageState) {
	key := fmt.Sprint(state)
	if e.seen[key] {
		return
	}
	e.seen[key] = true
	for k := range e.peaks {
		e.peaks[k].Forward = max(e.peaks[k].Forward, e.inFlight(state, k, k+1, Forward))
		e.peaks[k].Backward = max(e.peaks[k].Backward, e.inFlight(state, k+1, k, Backward))
	}
	moved, left := false, false
	for k := range state {
		if state[k].next == len(e.plan[k]) {
			continue
		}
		left = true
		if next, ok := e.move(state, k); ok {
			moved = true
			after := append([]stageState(nil), state...)
			after[k] = next
			e.visit(after)
		}
	}
	e.stuck = e.stuck || left && !moved
}

// move is the next state of stage k, if it can go on.
func (e *explorer) move(state []stageState, k int) (stageState, bool) {
	s := state[k]
	kind := e.plan[k][s.next].Kind
	from, to := k-1, k+1
	if kind == Backward {
		from, to = to, from
	}
	within := func(stage int) bool { return stage >= 0 && stage < len(e.plan) }
	if s.holding {
		room := !within(to) || e.depth == 0 || e.inFlight(state, k, to, kind) < e.depth
		return stageState{next: s.next + 1}, room
	}
	arrived := !within(from) || e.inFlight(state, from, k, kind) > 0
	return stageState{next: s.next, holding: true}, arrived
}

func TestCheckFindsADeadlockExactlyWhereSomeTimingHasOne(t *testing.T) {
	r := rand.New(rand.NewPCG(2024, 1))
	verdicts := make(map[string]int)
	for range 400 {
		microBatches := 1 + r.IntN(4)
		plan := randomPlan(r, 1+r.IntN(3), microBatches)
		for depth := range 3 {
			want := explore(plan, depth).stuck
			err := Check(plan, microBatches, Limits{LinkDepth: depth})
			if (err != nil) != want {
				t.Fatalf("depth %d:\n%v\nreaches a deadlock: %v; Check says %v", depth, plan, want, err)
			}
			verdicts[fmt.Sprintf("depth %d, deadlock %v", depth, want)]++
		}
	}
	for depth := range 3 {
		for _, deadlock := range []bool{false, true} {
			if key := fmt.Sprintf("depth %d, deadlock %v", depth, deadlock); verdicts[key] == 0 {
				t.Errorf("no case of %s among the random plans", key)
			}
		}
	}
}

func TestInFlightIsThePeakOverAllTimings(t *testing.T) {
	r := rand.New(rand.NewPCG(2024, 2))
	plans := 0
	for range 600 {
		microBatches := 1 + r.IntN(4)
		plan := randomPlan(r, 2+r.IntN(2), microBatches)
		if Check(plan, microBatches, Limits{}) != nil {
			continue
		}
		plans++
		got, want := InFlight(plan), explore(plan, 0).peaks
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%v\nin flight %+v; want %+v", plan, got, want)
		}
	}
	if plans < 50 {
		t.Errorf("only %d plans without deadlock", plans)
	}
}
