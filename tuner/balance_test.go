package tuner

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// heaviest is the most that a device of a cut takes.
func heaviest(c Chain, ranges [][2]int) float64 {
	at := []int{0}
	for _, run := range ranges {
		at = append(at, run[1])
	}
	return c.load(at)[0]
}

// chunked is a chain of layers on devices that have several stages each, as the schedule lays them.
func chunked(schedule string, devices, chunks int, times, slowdown []float64) Chain {
	sums, homes := []float64{0}, homesOf(schedule, devices, chunks)
	for i, took := range times {
		sums = append(sums, sums[i]+took)
	}
	return Chain{
		Layers: len(times), Stages: len(homes), Homes: homes,
		Cost: func(s, from, to int) float64 { return (sums[to] - sums[from]) * slowdown[homes[s]] },
	}
}

// Beside all cuts there are: the search never ends worse than it starts, and comes as near as its comment says.
func TestBalanceComesNearTheBestCut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, test := range []struct {
		name          string
		layer         func(i, n int) float64
		uneven        float64 // how much slower a device may be
		mean, largest float64
	}{
		{"random layers", func(int, int) float64 { return float64(1 + r.IntN(9)) }, 0, 1.025, 1.25},
		{"a transformer", func(i, n int) float64 {
			switch i {
			case 0:
				return 0.3
			case n - 1:
				return 2 + 10*r.Float64()
			}
			return 10 + r.Float64()/2
		}, 0, 1.002, 1.02},
		{"uneven devices", func(int, int) float64 { return math.Exp(r.NormFloat64()) }, 2, 1.025, 1.4},
	} {
		for _, shape := range []struct {
			schedule                string
			devices, chunks, layers int
		}{{"interleaved", 2, 2, 10}, {"interleaved", 3, 2, 12}, {"interleaved", 2, 4, 12}, {"zb-v", 2, 2, 10}, {"zb-v", 4, 2, 12}} {
			t.Run(fmt.Sprint(test.name, shape), func(t *testing.T) {
				excess, worst, gained, runs := 0.0, 0.0, 0.0, 150
				for range runs {
					var times, slowdown []float64
					for i := range shape.layers {
						times = append(times, test.layer(i, shape.layers))
					}
					for range shape.devices {
						slowdown = append(slowdown, 1+test.uneven*r.Float64())
					}
					c := chunked(shape.schedule, shape.devices, shape.chunks, times, slowdown)
					best := math.Inf(1)
					all(nil, 0, c.Layers, c.Stages, func(ranges [][2]int) { best = min(best, heaviest(c, ranges)) })
					got, err := Partition(c)
					if err != nil {
						t.Fatal(err)
					}
					chain := c
					chain.Homes = nil
					start, err := Partition(chain)
					if err != nil {
						t.Fatal(err)
					}
					took, before := heaviest(c, got), heaviest(c, start)
					if took > before {
						t.Fatalf("%v takes %v, the cut of even stages %v takes %v", got, took, start, before)
					}
					excess, worst, gained = excess+took/best/float64(runs), max(worst, took/best), gained+before/took/float64(runs)
				}
				t.Logf("%.4f of the best on average, %.3f at most; even stages take %.3f times as long", excess, worst, gained)
				if excess > test.mean || worst > test.largest {
					t.Errorf("%.4f of the best on average, %.3f at most; want %v and %v", excess, worst, test.mean, test.largest)
				}
			})
		}
	}
}

// Devices hold what they hold: a cut that fits stays one.
func TestBalanceKeepsToTheMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	moved := 0
	for range 200 {
		c := newRandom(r, 9, 4).chain()
		start, err := Partition(c)
		if err != nil {
			continue
		}
		c.Homes = homesOf("zb-v", 2, 2)
		got, err := Partition(c)
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for s, run := range got {
			if run[0] != at || run[1] <= run[0] || math.IsInf(c.Cost(s, run[0], run[1]), 1) {
				t.Fatalf("%v after %v: stage %d does not fit, or a layer is lost", got, start, s)
			}
			at = run[1]
		}
		if at != 9 {
			t.Fatalf("%v ends at layer %d of 9", got, at)
		}
		if fmt.Sprint(got) != fmt.Sprint(start) {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no boundary was moved; the test covers less than it says")
	}
}

func TestDevicesAreGivenForAllStagesOrNone(t *testing.T) {
	if _, err := Partition(Chain{Layers: 3, Stages: 2, Homes: []int{0}, Cost: func(int, int, int) float64 { return 1 }}); err == nil {
		t.Error("a chain of 2 stages with the device of one was cut")
	}
}

// A schedule with several stages a device takes the even cut of devices where that is simulated to be faster, and the even cut of
// stages else.
func TestChunksAreCutByTheFasterOfTwoCuts(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	faster, equal := 0, 0
	for range 40 {
		p := profileOf(6+r.IntN(8), 2+r.IntN(2))
		for i := range p.Layers {
			l, by := &p.Layers[i], 0.2+r.Float64()
			for _, c := range []*Curve{&l.Forward, &l.Backward, &l.BackwardInput, &l.BackwardWeight} {
				for j := range c.Values {
					c.Values[j] *= by
				}
			}
		}
		s := spaceOf(p)
		for _, name := range []string{"interleaved", "zb-v"} {
			l, err := s.predict(s.Targets[0], 1, 8, name)
			if err != nil || l.Verdict != "" {
				t.Fatalf("%s: %s %s, %v", name, l.Verdict, l.Reason, err)
			}
			var cuts [2]float64
			for i, homes := range [][]int{nil, l.homes} {
				cut := l.changed(func(l *layout) error { return l.cut(homes, nil) })
				if cut == nil {
					t.Fatalf("%s: a cut cannot be laid out", name)
				}
				cuts[i] = cut.Predicted.BatchSeconds
			}
			switch got := l.Predicted.BatchSeconds; {
			case got != min(cuts[0], cuts[1]):
				t.Errorf("%s takes %v s; by even stages %v, by even devices %v", name, got, cuts[0], cuts[1])
			case got < cuts[0]:
				faster++
			default:
				equal++
			}
		}
	}
	if faster == 0 || equal == 0 {
		t.Errorf("even devices were faster %d times, even stages as fast or faster %d times; the test covers less than it says", faster, equal)
	}
}
