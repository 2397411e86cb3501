package stage_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
)

func TestSplitIsTheBestOfAllSplits(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for trial := range 200 {
		n := 1 + rng.IntN(9)
		costs := make([]float64, n)
		for i := range costs {
			costs[i] = float64(rng.IntN(6)) // ties and zeros are likely
		}
		for k := 1; k <= n; k++ {
			ranges, err := stage.Split(costs, k)
			if err != nil {
				t.Fatal(err)
			}
			checkCovers(t, ranges, n, k)
			worst, squares := rate(costs, ranges)
			bestWorst, bestSquares := bruteForce(costs, k)
			if worst != bestWorst || squares != bestSquares {
				t.Errorf("trial %d: Split(%v, %d) = %v: largest %v, squares %v; best are %v and %v",
					trial, costs, k, ranges, worst, squares, bestWorst, bestSquares)
			}
		}
	}
}

// Of splits that are equal but for rounding, too, Split takes the one that looking at all runs takes.
func TestSplitIsThatOfAllRuns(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for trial := range 300 {
		n := 1 + rng.IntN(40)
		costs := make([]float64, n)
		for i := range costs {
			switch trial % 3 {
			case 0:
				costs[i] = rng.Float64()
			case 1:
				costs[i] = 0.1 * float64(1+rng.IntN(2)) // sums differ by their rounding
			default:
				costs[i] = 0.7
			}
		}
		costs[0], costs[n-1] = 0, costs[n-1]*float64(rng.IntN(12))
		for _, k := range []int{1, 1 + n/7, 1 + n/3, n} {
			got, err := stage.Split(costs, k)
			if want := ofAllRuns(costs, k); err != nil || !slices.Equal(got, want) {
				t.Fatalf("Split(%v, %d) = %v, %v, want %v", costs, k, got, err, want)
			}
		}
	}
}

// ofAllRuns is Split by two dynamic programs that look at every run of layers.
func ofAllRuns(costs []float64, k int) []stage.Range {
	n, prefix := len(costs), []float64{0}
	for i, c := range costs {
		prefix = append(prefix, prefix[i]+c)
	}
	worst, _ := leastOf(n, k, func(from, to int) float64 { return prefix[to] - prefix[from] }, math.Max)
	_, runs := leastOf(n, k, func(from, to int) float64 {
		c := prefix[to] - prefix[from]
		if c > worst {
			return math.Inf(1)
		}
		return c * c
	}, func(a, b float64) float64 { return a + b })
	return runs
}

// leastOf minimises join over the values of k runs of n layers, D[s][j] = min_i join(D[s-1][i], value(i, j)), and returns D[k][n] with the runs.
func leastOf(n, k int, value func(from, to int) float64, join func(a, b float64) float64) (least float64, runs []stage.Range) {
	values, starts := make([][]float64, k+1), make([][]int, k+1)
	for s := range values {
		values[s], starts[s] = slices.Repeat([]float64{math.Inf(1)}, n+1), make([]int, n+1)
	}
	values[0][0] = 0
	for s := 1; s <= k; s++ {
		for j := s; j <= n; j++ {
			for i := s - 1; i < j; i++ {
				if v := join(values[s-1][i], value(i, j)); v <= values[s][j] {
					values[s][j], starts[s][j] = v, i
				}
			}
		}
	}
	runs = make([]stage.Range, k)
	for s, to := k, n; s > 0; s-- {
		runs[s-1] = stage.Range{From: starts[s][to], To: to}
		to = runs[s-1].From
	}
	return values[k][n], runs
}

func checkCovers(t *testing.T, ranges []stage.Range, n, k int) {
	t.Helper()
	at := 0
	for _, r := range ranges {
		if r.From != at || r.Len() < 1 {
			t.Fatalf("ranges %v of %d layers: a gap, an overlap or an empty run", ranges, n)
		}
		at = r.To
	}
	if at != n || len(ranges) != k {
		t.Fatalf("ranges %v: want %d that cover %d layers", ranges, k, n)
	}
}

func rate(costs []float64, ranges []stage.Range) (worst, squares float64) {
	for _, r := range ranges {
		sum := 0.0
		for _, c := range costs[r.From:r.To] {
			sum += c
		}
		worst, squares = max(worst, sum), squares+sum*sum
	}
	return worst, squares
}

// bruteForce tries every way to choose k-1 of the n-1 cut points.
func bruteForce(costs []float64, k int) (worst, squares float64) {
	worst, squares = math.Inf(1), math.Inf(1)
	for cuts := range 1 << (len(costs) - 1) {
		var ranges []stage.Range
		from := 0
		for i := 1; i < len(costs); i++ {
			if cuts>>(i-1)&1 == 1 {
				ranges, from = append(ranges, stage.Range{From: from, To: i}), i
			}
		}
		ranges = append(ranges, stage.Range{From: from, To: len(costs)})
		if len(ranges) != k {
			continue
		}
		if w, s := rate(costs, ranges); w < worst || w == worst && s < squares {
			worst, squares = w, s
		}
	}
	return worst, squares
}

func TestSplitRefusesWithTheLargestNumberThatFits(t *testing.T) {
	for _, c := range []struct {
		costs []float64
		k     int
		want  string
	}{
		{[]float64{1, 2, 3}, 4, "the largest number of stages that fits is 3"},
		{[]float64{1, 2, 3}, 0, "at least 1 stage is needed"},
		{[]float64{1, -2, 3}, 2, "layer 1 costs -2"},
		{[]float64{1, 2, math.NaN()}, 2, "layer 2 costs NaN"},
	} {
		if _, err := stage.Split(c.costs, c.k); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Split(%v, %d) = %v, want %q", c.costs, c.k, err, c.want)
		}
	}
}

func ExampleSplit() {
	costs := []float64{0, 4, 4, 4, 4, 3} // embedding, four blocks, head
	ranges, _ := stage.Split(costs, 3)
	fmt.Println(ranges)
	// Output: [{0 3} {3 4} {4 6}]
}

func BenchmarkSplit(b *testing.B) {
	for _, n := range []int{1000, 2000, 4000} {
		costs := make([]float64, n)
		for i := range costs {
			costs[i] = 3e9
		}
		costs[0], costs[n-1] = 0, 17e9
		b.Run(fmt.Sprintf("layers=%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := stage.Split(costs, 64); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
