package tuner

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// random is a chain of layers with random times, on devices of random speeds and sizes.
type random struct {
	layers, bytes, speeds []float64
	transfers             []float64 // transfers[i] is before layer i
	capacity              []float64
}

func newRandom(r *rand.Rand, layers, stages int) random {
	c := random{}
	for range layers {
		c.layers = append(c.layers, float64(1+r.IntN(9)))
		c.bytes = append(c.bytes, float64(1+r.IntN(9)))
		c.transfers = append(c.transfers, float64(r.IntN(12)))
	}
	for range stages {
		c.speeds = append(c.speeds, float64(1+r.IntN(3)))
		c.capacity = append(c.capacity, float64(5+r.IntN(60)))
	}
	return c
}

func sum(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total
}

func (c random) chain() Chain {
	return Chain{
		Layers: len(c.layers), Stages: len(c.speeds),
		Cost: func(s, from, to int) float64 {
			if sum(c.bytes[from:to]) > c.capacity[s] {
				return math.Inf(1)
			}
			return sum(c.layers[from:to]) * c.speeds[s]
		},
		Transfer: func(s, at int) float64 { return c.transfers[at] * float64(1+s%2) },
	}
}

// worth is what Partition minimises, of one cut: the slowest stage or message, the sum of transfers, the sum of squares.
func worth(c Chain, ranges [][2]int) [3]float64 {
	var w [3]float64
	for s, r := range ranges {
		cost := c.Cost(s, r[0], r[1])
		w[0] = max(w[0], cost)
		if r[0] > 0 {
			w[0] = max(w[0], c.Transfer(s, r[0]))
			w[1] += c.Transfer(s, r[0])
		}
		w[2] += cost * cost
	}
	return w
}

// all calls f with every cut of the layers from..n-1 into stages.
func all(prefix [][2]int, from, n, stages int, f func([][2]int)) {
	if stages == 1 {
		f(append(prefix, [2]int{from, n}))
		return
	}
	for to := from + 1; to <= n-stages+1; to++ {
		all(append(slices.Clip(prefix), [2]int{from, to}), to, n, stages-1, f)
	}
}

func TestPartitionIsTheBestOfAllCuts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for range 600 {
		layers := 1 + r.IntN(9)
		stages := 1 + r.IntN(layers)
		c := newRandom(r, layers, stages).chain()
		best := [3]float64{math.Inf(1), math.Inf(1), math.Inf(1)}
		all(nil, 0, layers, stages, func(ranges [][2]int) {
			if w := worth(c, ranges); slices.Compare(w[:], best[:]) < 0 {
				best = w
			}
		})
		got, err := Partition(c)
		if math.IsInf(best[0], 1) {
			refused++
			if !errors.Is(err, ErrUnfit) {
				t.Fatalf("%d layers, %d stages: no cut fits, and Partition says %v, %v", layers, stages, got, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if w := worth(c, got); w != best {
			t.Fatalf("%d layers, %d stages: %v is worth %v, the best cut %v", layers, stages, got, w, best)
		}
	}
	if refused == 0 {
		t.Error("no chain was too large for its devices; the test covers less than it says")
	}
}

// Of cuts that are equal, or equal but for rounding, Partition takes the one that looking at all runs takes, whatever runs devices hold.
func TestPartitionIsThatOfAllRuns(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	unfit := 0
	for trial := range 400 {
		n := 1 + r.IntN(25)
		c := random{}
		sums := []float64{0}
		for i := range n {
			cost := 0.7
			if trial%2 == 0 {
				cost = 0.1 * float64(1+r.IntN(3))
			}
			if i == n-1 {
				cost *= float64(1 + r.IntN(10))
			}
			sums = append(sums, sums[i]+cost)
			c.transfers = append(c.transfers, 0.1*float64(r.IntN(4)))
		}
		chain := Chain{
			Layers: n, Stages: 1 + r.IntN(n), Cost: func(_, from, to int) float64 { return sums[to] - sums[from] },
			Transfer: func(s, at int) float64 { return c.transfers[at] * float64(1+s%2) },
		}
		if trial%4 == 0 { // what a longer run needs may be less
			chain.Fits = func(s, from, to int) bool { return (7*s+5*from+3*to)%6 > 0 }
		}
		want := cutOfAllRuns(chain)
		got, err := Partition(chain)
		if want == nil {
			unfit++
		}
		if !slices.Equal(got, want) || (want == nil) != errors.Is(err, ErrUnfit) {
			t.Fatalf("%d layers, %d stages, sums %v: %v, %v, want %v", n, chain.Stages, sums, got, err, want)
		}
	}
	if unfit == 0 {
		t.Error("every chain fits; the test covers less than it says")
	}
}

// cutOfAllRuns is Partition by two dynamic programs that look at every run of layers; nil where none fits.
func cutOfAllRuns(c Chain) [][2]int {
	slowest := func(s, from, to int) float64 {
		if !c.fits(s, from, to) {
			return math.Inf(1)
		}
		return max(c.Cost(s, from, to), c.transfer(s, from))
	}
	bound, _ := leastOf(c, func(s, from, to int) value { return value{slowest(s, from, to), 0} },
		func(a, b value) value { return value{max(a[0], b[0]), 0} })
	if math.IsInf(bound[0], 1) {
		return nil
	}
	_, runs := leastOf(c, func(s, from, to int) value {
		if slowest(s, from, to) > bound[0] {
			return unfit
		}
		cost := c.Cost(s, from, to)
		return value{c.transfer(s, from), cost * cost}
	}, func(a, b value) value { return value{a[0] + b[0], a[1] + b[1]} })
	return runs
}

// leastOf is the least join of the values of the runs of a cut, and the cut.
func leastOf(c Chain, of func(s, from, to int) value, join func(a, b value) value) (value, [][2]int) {
	least, start := make([][]value, c.Stages+1), make([][]int, c.Stages+1)
	for s := range least {
		least[s], start[s] = slices.Repeat([]value{unfit}, c.Layers+1), make([]int, c.Layers+1)
	}
	least[0][0] = value{}
	for s := 1; s <= c.Stages; s++ {
		for j := s; j <= c.Layers; j++ {
			for i := s - 1; i < j; i++ {
				if v := join(least[s-1][i], of(s-1, i, j)); v.compare(least[s][j]) <= 0 {
					least[s][j], start[s][j] = v, i
				}
			}
		}
	}
	runs := make([][2]int, c.Stages)
	for s, to := c.Stages, c.Layers; s > 0; s-- {
		runs[s-1] = [2]int{start[s][to], to}
		to = start[s][to]
	}
	return least[c.Stages][c.Layers], runs
}

// Every run of every stage would be stages times half the square of the layers.
func TestPartitionLooksAtNoRunThatIsTooLong(t *testing.T) {
	const layers, stages = 500, 64
	looked := 0
	_, err := Partition(Chain{Layers: layers, Stages: stages, Cost: func(_, from, to int) float64 {
		looked++
		return float64(to - from)
	}})
	if most := 4 * layers * layers; err != nil || looked > most {
		t.Errorf("Partition of %d layers into %d stages looked at %d runs, at most %d are of use; %v", layers, stages, looked, most, err)
	}
}

func BenchmarkPartition(b *testing.B) {
	for _, n := range []int{1000, 2000, 4000} {
		b.Run(fmt.Sprintf("layers=%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := Partition(Chain{Layers: n, Stages: 64, Cost: func(_, from, to int) float64 { return float64(to - from) }}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestPartitionKeepsEveryLayerOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		layers := 1 + r.IntN(60)
		c := newRandom(r, layers, 1+r.IntN(layers))
		for s := range c.capacity {
			c.capacity[s] = math.Inf(1)
		}
		got, err := Partition(c.chain())
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for _, one := range got {
			if one[0] != at || one[1] <= one[0] {
				t.Fatalf("%d layers: %v drops, repeats or leaves out layers at %d", layers, got, at)
			}
			at = one[1]
		}
		if at != layers {
			t.Fatalf("%d layers: %v ends at %d", layers, got, at)
		}
	}
}

func TestMoreStagesThanLayersAreRefusedWithTheMostThatFit(t *testing.T) {
	_, err := Partition(Chain{Layers: 3, Stages: 5, Cost: func(int, int, int) float64 { return 1 }})
	short, is := errors.AsType[*StagesError](err)
	if !is || short.Layers != 3 || !strings.Contains(err.Error(), "the largest number of stages that fits is 3") {
		t.Errorf("error is %v", err)
	}
}

// A slow device gets fewer layers: of 12 equal layers, a device at a third of the speed takes 3 beside one that takes 9.
func TestSlowDevicesGetFewerLayers(t *testing.T) {
	speeds := []float64{3, 1}
	got, err := Partition(Chain{Layers: 12, Stages: 2, Cost: func(s, from, to int) float64 {
		return speeds[s] * float64(to-from)
	}})
	if err != nil || !slices.Equal(got, [][2]int{{0, 3}, {3, 12}}) {
		t.Errorf("cut is %v, %v", got, err)
	}
}

// TestLayersThatSeemToTakeLessThanNothing: what is measured of several layers together may say so of one. The cut is one all the same, with no empty stage.
func TestLayersThatSeemToTakeLessThanNothing(t *testing.T) {
	curve := func(seconds float64) Curve { return Curve{Samples: []int{1, 2}, Values: []float64{seconds, seconds}} }
	profile := &Profile{Devices: []Device{{Slowdown: 1}, {Slowdown: 1}}}
	for _, seconds := range []float64{-2.6e-6, 396e-6, 390e-6, 700e-6} {
		profile.Layers = append(profile.Layers, Layer{Forward: curve(seconds), Backward: curve(0)})
	}
	for _, recompute := range []string{"none", "block"} {
		l := &layout{Candidate: Candidate{Recompute: []string{recompute, recompute}}, profile: profile, samples: 1, homes: []int{0, 1}}
		if err := l.cut(nil, nil); err != nil || len(l.Split) != 2 || l.Split != nil && (l.Split[0] != [2]int{0, 3} || l.Split[1] != [2]int{3, 4}) {
			t.Errorf("recompute %s: %v, %v", recompute, l.Split, err)
		}
	}
}
