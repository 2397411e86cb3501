package schedule

import (
	"fmt"
	"math"
)

// Costs are the times of one micro-batch, all in one unit of the caller's choice (seconds, as a profile gives them).
// Results come in the same unit.
type Costs struct {
	Forward  []float64 // per stage
	Backward []float64 // per stage: the whole backward
	// BackwardInput and BackwardWeight are, per stage, the two halves of a split backward; nil is half of Backward each.
	BackwardInput  []float64
	BackwardWeight []float64
	// Link is the one-way time of a message per link, stage k to k+1 and back. A link carries any number of messages at
	// once. Nil is no time at all.
	Link []float64
}

// Uniform are the costs of stages that are all alike.
func Uniform(stages int, forward, backward, link float64) Costs {
	return Costs{
		Forward:  repeat(forward, stages),
		Backward: repeat(backward, stages),
		Link:     repeat(link, stages-1),
	}
}

func repeat(value float64, n int) []float64 {
	values := make([]float64, max(0, n))
	for i := range values {
		values[i] = value
	}
	return values
}

// Validate refuses lists of the wrong length and times that are negative, infinite or not a number, by name.
func (c Costs) Validate(stages int) error {
	for _, list := range []struct {
		name     string
		values   []float64
		want     int
		unit     string
		optional bool
	}{
		{"forward", c.Forward, stages, "stage", false},
		{"backward", c.Backward, stages, "stage", false},
		{"backward input", c.BackwardInput, stages, "stage", true},
		{"backward weight", c.BackwardWeight, stages, "stage", true},
		{"link", c.Link, stages - 1, "link", true},
	} {
		if list.optional && list.values == nil {
			continue
		}
		if len(list.values) != list.want {
			return fmt.Errorf("costs: %s has %s for %s; want one a %s: %d",
				list.name, countOf(len(list.values), "value"), countOf(stages, "stage"), list.unit, list.want)
		}
		for i, v := range list.values {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				return fmt.Errorf("costs: %s time of %s %d is %v; want a finite time, 0 or more", list.name, list.unit, i, v)
			}
		}
	}
	return nil
}

// of is the time of one op of stage k.
func (c Costs) of(k int, kind Kind) float64 {
	switch kind {
	case Forward:
		return c.Forward[k]
	case Backward:
		return c.Backward[k]
	case BackwardInput:
		if c.BackwardInput != nil {
			return c.BackwardInput[k]
		}
		return c.Backward[k] / 2
	case BackwardWeight:
		if c.BackwardWeight != nil {
			return c.BackwardWeight[k]
		}
		return c.Backward[k] / 2
	}
	return 0
}

// link is the one-way time of link k, stage k to k+1.
func (c Costs) link(k int) float64 {
	if c.Link == nil {
		return 0
	}
	return c.Link[k]
}

// SteadyPeriod is the time per micro-batch in the middle of a long batch: of the slowest stage, or of the slowest loop over
// stages k..l, which the warm-up lets w_k - w_l + 1 micro-batches share (docs/schedules.md derives it). It is +Inf for a
// warm-up that grows from one stage to a later one, since that plan deadlocks. The costs must be valid.
//
//	P(w) = max( max_k (F_k + B_k),
//	            max_{k<l} [ sum_{j=k..l} (F_j + B_j) + 2 sum_{j=k..l-1} c_j ] / (w_k - w_l + 1) )
func SteadyPeriod(warmups []int, c Costs) float64 {
	period := 0.0
	for k := range warmups {
		loop := 0.0
		for l := k; l < len(warmups); l++ {
			loop += c.Forward[l] + c.Backward[l]
			if l > k {
				loop += 2 * c.link(l-1)
			}
			share := warmups[k] - warmups[l] + 1
			if share < 1 {
				return math.Inf(1)
			}
			period = max(period, loop/float64(share))
		}
	}
	return period
}
