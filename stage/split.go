package stage

import (
	"fmt"
	"math"
	"slices"
)

// Range is a run of consecutive layers of a model: From, From+1, ..., To-1.
type Range struct{ From, To int }

// Len is the number of layers.
func (r Range) Len() int { return r.To - r.From }

// Split cuts the chain of layers with these costs (of any one unit: seconds, FLOPs) into k runs so that the largest
// total cost of a run is as small as possible. It is exact (dynamic programming over cut points, O(k n^2)). Among the
// optimal splits it takes the one with the least sum of squares, that is the most even one, and among those the one
// with the most layers on early stages; the same costs always give the same split. No layer is dropped and no run is
// empty, so k must not exceed the number of layers.
func Split(costs []float64, k int) ([]Range, error) {
	n := len(costs)
	if k < 1 {
		return nil, fmt.Errorf("split %d layers into %d stages: at least 1 stage is needed", n, k)
	}
	if k > n {
		return nil, fmt.Errorf("split %d layers into %d stages: every stage needs a layer; "+
			"the largest number of stages that fits is %d", n, k, n)
	}
	prefix := make([]float64, n+1)
	for i, c := range costs {
		if !(c >= 0) || math.IsInf(c, 0) {
			return nil, fmt.Errorf("split %d layers into %d stages: layer %d costs %v; costs are finite and at least 0", n, k, i, c)
		}
		prefix[i+1] = prefix[i] + c
	}
	run := func(from, to int) float64 { return prefix[to] - prefix[from] }
	worst, _ := best(n, k, run, math.Max)
	_, ranges := best(n, k, func(from, to int) float64 {
		c := run(from, to)
		if c > worst {
			return math.Inf(1)
		}
		return c * c
	}, func(a, b float64) float64 { return a + b })
	return ranges, nil
}

// best minimises join over the values of k runs of n layers, D[s][j] = min_i join(D[s-1][i], value(i, j)), and returns D[k][n] with the runs.
func best(n, k int, value func(from, to int) float64, join func(a, b float64) float64) (least float64, runs []Range) {
	values, starts := make([][]float64, k+1), make([][]int, k+1) // starts has that of the last run
	for s := range values {
		values[s], starts[s] = slices.Repeat([]float64{math.Inf(1)}, n+1), make([]int, n+1)
	}
	values[0][0] = 0
	for s := 1; s <= k; s++ {
		for j := s; j <= n; j++ {
			for i := s - 1; i < j; i++ {
				v := join(values[s-1][i], value(i, j))
				if v <= values[s][j] { // of equals the latest cut: early stages get more layers
					values[s][j], starts[s][j] = v, i
				}
			}
		}
	}
	runs = make([]Range, k)
	for s, to := k, n; s > 0; s-- {
		runs[s-1] = Range{From: starts[s][to], To: to}
		to = runs[s-1].From
	}
	return values[k][n], runs
}
