package stage_test

import (
	"fmt"
	"math"
	"math/rand/v2"
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
