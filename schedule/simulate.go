package schedule

import (
	"errors"
	"fmt"
)

// Span is when an op runs, in the unit of Costs, counted from the start of the batch.
type Span struct{ Start, End float64 }

// Result is what Simulate finds. Times are in the unit of Costs.
type Result struct {
	Makespan float64   // from the first start to the last end: the time of one batch
	Spans    [][]Span  // Spans[k][i] is when stage k runs Plan[k][i]
	Busy     []float64 // per stage: time spent computing
	Bubble   float64   // the share of all stages' time in which nothing computes, 0..1
	Pinned   []int     // per stage: peak of micro-batches held between forward and backward
}

// Simulate times a plan: an op starts when its stage is free and its message has arrived. Links carry any number of
// messages at once, and sending costs the stage nothing. The result depends on the arguments only; the work is O(ops).
//
// A plan that Check refuses is refused here with the same error.
func Simulate(plan Plan, costs Costs) (Result, error) {
	microBatches := countForwards(plan)
	if err := checkOrder(plan, max(1, microBatches)); err != nil {
		return Result{}, err
	}
	if !plan.plain() || plan.Updates() > 0 {
		return Result{}, errors.New("schedule: simulate: a device has several stages, or takes updates; neither can be timed yet")
	}
	if err := costs.Validate(len(plan)); err != nil {
		return Result{}, fmt.Errorf("schedule: simulate: %w", err)
	}
	s := newSimulation(plan, costs, microBatches)
	if err := checkProgress(plan, 0, s.visit); err != nil {
		return Result{}, err
	}
	return s.result(), nil
}

func countForwards(plan Plan) int {
	n := 0
	if len(plan) > 0 {
		for _, op := range plan[0] {
			if op.Kind == Forward {
				n++
			}
		}
	}
	return n
}

// simulation gives each op its time, in the order in which a traversal visits them.
type simulation struct {
	plan  Plan
	costs [][len(kindLetters)]float64 // per stage: the time of each kind
	links []float64                   // per link, one way
	spans [][]Span
	free  []float64 // per stage: when its last op ends

	// When the message of a micro-batch reaches a stage: [stage*microBatches + micro].
	microBatches int
	activation   []float64
	gradient     []float64
}

func newSimulation(plan Plan, costs Costs, microBatches int) *simulation {
	stages := len(plan)
	s := &simulation{
		plan: plan, microBatches: microBatches,
		costs: make([][len(kindLetters)]float64, stages), links: make([]float64, stages-1),
		spans: make([][]Span, stages), free: make([]float64, stages),
		activation: make([]float64, stages*microBatches), gradient: make([]float64, stages*microBatches),
	}
	spans := make([]Span, plan.Ops())
	for k, ops := range plan {
		s.spans[k], spans = spans[:len(ops):len(ops)], spans[len(ops):]
		for kind := range s.costs[k] {
			s.costs[k][kind] = costs.of(k, Kind(kind))
		}
	}
	for k := range s.links {
		s.links[k] = costs.link(k)
	}
	return s
}

func (s *simulation) visit(k, i int) {
	op := s.plan[k][i]
	at := k*s.microBatches + op.Micro
	start := s.free[k]
	if crossesDown(op.Kind) {
		start = max(start, s.activation[at])
	} else if crossesUp(op.Kind) {
		start = max(start, s.gradient[at])
	}
	end := start + s.costs[k][op.Kind]
	if crossesDown(op.Kind) && k+1 < len(s.plan) {
		s.activation[at+s.microBatches] = end + s.links[k]
	} else if crossesUp(op.Kind) && k > 0 {
		s.gradient[at-s.microBatches] = end + s.links[k-1]
	}
	s.free[k] = end
	s.spans[k][i] = Span{Start: start, End: end}
}

func (s *simulation) result() Result {
	r := Result{Spans: s.spans, Busy: make([]float64, len(s.plan)), Pinned: Pinned(s.plan)}
	total := 0.0
	for k, ops := range s.plan {
		r.Makespan = max(r.Makespan, s.free[k])
		for _, op := range ops {
			r.Busy[k] += s.costs[k][op.Kind]
		}
		total += r.Busy[k]
	}
	if r.Makespan > 0 {
		r.Bubble = max(0, 1-total/(float64(len(s.plan))*r.Makespan)) // not below 0 by rounding
	}
	return r
}
