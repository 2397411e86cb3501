package stage

import (
	"fmt"
	"math"
	"slices"
	"sort"
)

// Range is a run of consecutive layers of a model: From, From+1, ..., To-1.
type Range struct{ From, To int }

// Len is the number of layers.
func (r Range) Len() int { return r.To - r.From }

// Split cuts the chain of layers with these costs (of any one unit: seconds, FLOPs) into k runs so that the largest total cost of a run is the
// smallest that can be. Of such splits it takes the one with the least sum of squares, the most even one, and of those the one with the most
// layers on early stages: the same costs always give the same split. No layer is dropped and no run is empty, so k layers are needed.
func Split(costs []float64, k int) ([]Range, error) {
	n := len(costs)
	if k < 1 || k > n {
		return nil, fmt.Errorf("split %d layers into %d stages: at least 1 stage is needed, the largest number of stages that fits is %d", n, k, n)
	}
	prefix := make([]float64, n+1)
	for i, c := range costs {
		if !(c >= 0) || math.IsInf(c, 0) {
			return nil, fmt.Errorf("split %d layers into %d stages: layer %d costs %v; costs are finite and at least 0", n, k, i, c)
		}
		prefix[i+1] = prefix[i] + c
	}
	return even(prefix, k, bottleneck(prefix, k)), nil
}

// bottleneck is the least bound that k runs can keep, by parametric search: a bound is kept where k runs that each take as many layers as it
// allows take all. The bits of floating-point numbers of at least 0 are in the order of the numbers.
func bottleneck(prefix []float64, k int) float64 {
	n := len(prefix) - 1
	return math.Float64frombits(uint64(sort.Search(int(math.Float64bits(prefix[n])), func(bits int) bool {
		bound, at := math.Float64frombits(uint64(bits)), 0
		for range k {
			at += sort.Search(n-at, func(i int) bool { return prefix[at+i+1]-prefix[at] > bound })
		}
		return at == n
	})))
}

// even minimises the sum of squares of k runs within a bound: D[s][j] = min_i D[s-1][i] + (prefix[j]-prefix[i])^2. It looks at no run
// that is above the bound, or alone worse than a cut that it found: for layers that are alike, O(n^2) in all.
func even(prefix []float64, k int, bound float64) []Range {
	n := len(prefix) - 1
	starts, least := make([][]int, k), append([]float64{0}, slices.Repeat([]float64{math.Inf(1)}, n)...) // starts has that of run s to layer j
	for s := range starts {
		before := least
		starts[s], least = make([]int, n+1), slices.Repeat([]float64{math.Inf(1)}, n+1)
		for j := s + 1; j <= n; j++ {
			for i := j - 1; i >= s && prefix[j]-prefix[i] <= min(bound, math.Sqrt(least[j])); i-- {
				c := prefix[j] - prefix[i]
				if v := before[i] + float64(c*c); v < least[j] { // of equals the latest cut: early stages get more layers
					least[j], starts[s][j] = v, i
				}
			}
		}
	}
	runs := make([]Range, k)
	for s := k - 1; s >= 0; s-- {
		runs[s] = Range{From: starts[s][n], To: n}
		n = runs[s].From
	}
	return runs
}
