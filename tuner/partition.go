package tuner

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Chain is what Partition cuts: a model's layers in order, and what runs of them cost.
type Chain struct {
	Layers int
	Stages int
	// Homes is the device of each stage. Nil: each has one of its own.
	Homes []int
	// Cost is the time of one micro-batch, forward and backward, of layers from..to-1 on the device of a stage. It must not be negative or
	// NaN, nor fall where a layer is added.
	Cost func(stage, from, to int) float64
	// Fits says whether the device of a stage can hold layers from..to-1. Nil: each can hold all.
	Fits func(stage, from, to int) bool
	// Transfer is the one-way time of the message into a stage that begins with layer at, from the stage before it. Nil is no time at all.
	Transfer func(stage, at int) float64
}

// StagesError says that a chain has fewer layers than stages.
type StagesError struct{ Layers, Stages int }

func (e *StagesError) Error() string {
	return fmt.Sprintf("%d stages for %d layers: every stage needs a layer; the largest number of stages that fits is %d",
		e.Stages, e.Layers, e.Layers)
}

// ErrUnfit says that no cut puts every stage on a device that holds it.
var ErrUnfit = errors.New("no cut into so many stages fits the devices")

// Partition cuts the chain so that the slowest stage, or the slowest message if that is slower, is as fast as can be. That is
// exact: D[s][j] = min_i max(D[s-1][i], Cost(s, i, j), Transfer(s, i)), with the device in the state as the stage that it holds.
// Among cuts that are equally good it takes the one with the least sum of transfers, which the pipeline fills and drains
// through; then the one with the least sum of squared costs, the most even one; then the one with the most layers on early
// stages. No layer is dropped and no stage is empty. It looks at no longer runs than help: stage s of layers that are alike has
// at most layers/s, so the work is O(layers^2 log stages). A parametric search, as stage.Split does it, would have to look at
// them all the same, since memory is not additive.
//
// Where Homes has several stages on a device, what bounds a batch is the sum of them. That is no chain, and from this cut a local
// search goes on to one that is at least as good and not always the best: see balance.
//
// It returns, of each stage, its first layer and the one after its last. Errors are *StagesError and ErrUnfit.
func Partition(c Chain) ([][2]int, error) {
	switch {
	case c.Stages < 1:
		return nil, fmt.Errorf("partition %d layers into %d stages: at least 1 stage is needed", c.Layers, c.Stages)
	case c.Homes != nil && len(c.Homes) != c.Stages:
		return nil, fmt.Errorf("partition into %d stages: the devices of %d are given; all or none", c.Stages, len(c.Homes))
	case c.Stages > c.Layers:
		return nil, &StagesError{Layers: c.Layers, Stages: c.Stages}
	}
	bound := cut(c, func(cost, transfer float64) value { return value{max(cost, transfer), 0} },
		func(a, b value) value { return value{max(a[0], b[0]), 0} },
		func(found value) float64 { return found[0] }).best()[0]
	if math.IsInf(bound, 1) {
		return nil, ErrUnfit
	}
	even := cut(c, func(cost, transfer float64) value { return value{transfer, cost * cost} },
		func(a, b value) value { return value{a[0] + b[0], a[1] + b[1]} },
		func(value) float64 { return bound }).ranges()
	if c.shared() {
		return balance(c, even), nil
	}
	return even, nil
}

// shared reports whether a device has several stages.
func (c Chain) shared() bool {
	homes := slices.Sorted(slices.Values(c.Homes))
	return len(slices.Compact(homes)) < len(c.Homes)
}

// fits reports whether the device of stage s can hold layers from..to-1.
func (c Chain) fits(s, from, to int) bool { return c.Fits == nil || c.Fits(s, from, to) }

// transfer is the one-way time of the message into a stage that begins with layer at.
func (c Chain) transfer(stage, at int) float64 {
	if c.Transfer == nil || stage == 0 || at == 0 {
		return 0
	}
	return c.Transfer(stage, at)
}

// value is what a cut is worth: smaller is better, the first number first.
type value [2]float64

var unfit = value{math.Inf(1), math.Inf(1)}

func (v value) compare(w value) int {
	if n := cmp.Compare(v[0], w[0]); n != 0 {
		return n
	}
	return cmp.Compare(v[1], w[1])
}

// cuts holds, for each number of stages s and of leading layers j, the best value and where the last stage begins.
type cuts struct {
	value [][]value
	start [][]int
}

// cut minimises the join of all stages' values. No stage or message of a cut that is better than one that was found takes longer than
// longest of that one's value.
func cut(c Chain, of func(cost, transfer float64) value, join func(a, b value) value, longest func(found value) float64) cuts {
	t := cuts{value: make([][]value, c.Stages+1), start: make([][]int, c.Stages+1)}
	for s := range t.value {
		t.value[s], t.start[s] = slices.Repeat([]value{unfit}, c.Layers+1), make([]int, c.Layers+1)
	}
	t.value[0][0] = value{}
	for s := 1; s <= c.Stages; s++ {
		for j := s; j <= c.Layers-(c.Stages-s); j++ {
			best := &t.value[s][j]
			for i := j - 1; i >= s-1; i-- {
				cost, transfer, limit := c.Cost(s-1, i, j), c.transfer(s-1, i), longest(*best)
				if cost > limit || math.IsInf(cost, 1) {
					break // more layers take no less
				}
				if transfer > limit || math.IsInf(t.value[s-1][i][0], 1) {
					continue
				}
				v := join(t.value[s-1][i], of(cost, transfer))
				if v.compare(*best) < 0 && c.fits(s-1, i, j) { // of equals the latest cut: early stages get more layers
					*best, t.start[s][j] = v, i
				}
			}
		}
	}
	return t
}

func (t cuts) best() value {
	k := len(t.value) - 1
	return t.value[k][len(t.value[k])-1]
}

func (t cuts) ranges() [][2]int {
	k := len(t.value) - 1
	out := make([][2]int, k)
	for s, to := k, len(t.value[k])-1; s > 0; s-- {
		out[s-1] = [2]int{t.start[s][to], to}
		to = t.start[s][to]
	}
	return out
}
