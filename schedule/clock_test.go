package schedule

import "testing"

// unit is the time of an op where forwards and both halves of a backward take the same, and updates and messages none.
func unit(k Kind) float64 {
	switch k {
	case Forward, BackwardInput, BackwardWeight:
		return 1
	case Backward:
		return 2
	case Update:
	}
	return 0
}

// timesOf is when each op runs where messages take no time, by definition: when its device is free and the op it needs has
// ended. It knows nothing of Simulate.
func timesOf(t *testing.T, plan Plan, cost func(Kind) float64) [][]Span {
	t.Helper()
	type done struct {
		down         bool
		stage, micro int
	}
	ended := make(map[done]float64)
	spans, free := make([][]Span, len(plan)), make([]float64, len(plan))
	for left := plan.Ops(); left > 0; {
		before := left
		for d, ops := range plan {
			for len(spans[d]) < len(ops) {
				op := ops[len(spans[d])]
				needs := done{down: true, stage: -1} // nothing
				ended[needs] = 0
				switch {
				case op.Kind == Forward && op.Stage > 0:
					needs = done{true, op.Stage - 1, op.Micro}
				case (op.Kind == Backward || op.Kind == BackwardInput) && op.Stage+1 < plan.Stages():
					needs = done{false, op.Stage + 1, op.Micro}
				}
				arrived, ok := ended[needs]
				if !ok {
					break
				}
				start := max(free[d], arrived)
				free[d] = start + cost(op.Kind)
				spans[d] = append(spans[d], Span{Start: start, End: free[d]})
				switch op.Kind {
				case Forward:
					ended[done{true, op.Stage, op.Micro}] = free[d]
				case Backward, BackwardInput:
					ended[done{false, op.Stage, op.Micro}] = free[d]
				case BackwardWeight, Update:
				}
				left--
			}
		}
		if left == before {
			t.Fatalf("deadlock:\n%v", plan)
		}
	}
	return spans
}
