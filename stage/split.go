package stage

import (
	"fmt"
	"math"
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
	worst := best(n, k, run, math.Max).total()
	squares := best(n, k, func(from, to int) float64 {
		c := run(from, to)
		if c > worst {
			return math.Inf(1)
		}
		return c * c
	}, func(a, b float64) float64 { return a + b })
	return squares.ranges(), nil
}

// splits holds, for each number of runs s and of leading layers j, the best value and the start of the last run.
type splits struct {
	value [][]float64
	start [][]int
}

// best minimises join over the values of k runs of n layers: D[s][j] = min_i join(D[s-1][i], value(i, j)).
func best(n, k int, value func(from, to int) float64, join func(a, b float64) float64) splits {
	t := splits{value: make([][]float64, k+1), start: make([][]int, k+1)}
	for s := 0; s <= k; s++ {
		t.value[s], t.start[s] = make([]float64, n+1), make([]int, n+1)
		for j := range t.value[s] {
			t.value[s][j] = math.Inf(1)
		}
	}
	t.value[0][0] = 0
	for s := 1; s <= k; s++ {
		for j := s; j <= n; j++ {
			for i := s - 1; i < j; i++ {
				v := join(t.value[s-1][i], value(i, j))
				if v <= t.value[s][j] { // of equals the latest cut: early stages get more layers
					t.value[s][j], t.start[s][j] = v, i
				}
			}
		}
	}
	return t
}

func (t splits) total() float64 {
	k := len(t.value) - 1
	return t.value[k][len(t.value[k])-1]
}

func (t splits) ranges() []Range {
	k := len(t.value) - 1
	out := make([]Range, k)
	for s, to := k, len(t.value[k])-1; s > 0; s-- {
		out[s-1] = Range{From: t.start[s][to], To: to}
		to = t.start[s][to]
	}
	return out
}
