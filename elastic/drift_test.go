package elastic

import (
	"math"
	"slices"
	"testing"
)

func TestDriftBeyondItsBoundLastsUntilHalfOfIt(t *testing.T) {
	d := NewDrift(0.1, false)
	for i, c := range []struct {
		drift                float64
		synchronous, changed bool
	}{
		{0.1, false, false}, {0.11, true, true}, {0.06, true, false}, {0.05, false, true}, {0.09, false, false}, {math.NaN(), true, true}, {0.2, true, false}, {0, false, true},
	} {
		drift, changed := d.Complete(4*c.drift*c.drift, 4)
		if changed != c.changed || d.Synchronous() != c.synchronous || math.Abs(drift-c.drift) > 1e-15 {
			t.Errorf("round %d: drift %g, synchronous %v, changed %v; want %+v", i, drift, d.Synchronous(), changed, c)
		}
	}
	if free := NewDrift(0, true); free.Synchronous() || free.Bounded() {
		t.Errorf("without a bound: %+v", free)
	} else if _, changed := free.Complete(math.Inf(1), 1); changed {
		t.Error("without a bound rounds become synchronous")
	}
}

// TestSampledElementsDoNotDependOnTheCut: those of parts are those of the whole, evenly over it, and all of a short one.
func TestSampledElementsDoNotDependOnTheCut(t *testing.T) {
	for _, length := range []int{1, 15, 100, driftRuns * driftRun, 1<<20 + 7} {
		whole := 0
		at := map[int]bool{}
		Sampled(0, length, length, func(from, to int) {
			whole += to - from
			for i := from; i < to; i++ {
				at[i] = true
			}
		})
		if whole != min(length, driftRuns*driftRun) || len(at) != whole {
			t.Errorf("length %d: %d elements, %d different ones", length, whole, len(at))
		}
		parts := 0
		for from := 0; from < length; from += 1 + length/7 {
			to := min(from+1+length/7, length)
			Sampled(from, to, length, func(a, b int) {
				if a < from || b > to || !at[a] || !at[b-1] {
					t.Errorf("length %d: part %d to %d samples %d to %d", length, from, to, a, b)
				}
				parts += b - a
			})
		}
		if parts != whole {
			t.Errorf("length %d: the parts have %d elements, the whole %d", length, parts, whole)
		}
	}
}

// TestACenterIsSynchronizedBetweenRoundsOnly: then nobody is released before all have come.
func TestACenterIsSynchronizedBetweenRoundsOnly(t *testing.T) {
	c := NewCenter(Needs{Timing: Before, Delta: true}, 0, 0, 1)
	if err := c.Synchronize(true); err != nil {
		t.Fatal(err)
	}
	first, err := c.Update(1, 1)
	if err != nil || len(first) != 0 {
		t.Errorf("the first message of a synchronous round: %v, %v", first, err)
	}
	if err := c.Synchronize(false); err == nil {
		t.Error("the timing of a round changed within it")
	}
	rest, err := c.Update(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []ActionKind
	for _, a := range rest {
		kinds = append(kinds, a.Kind)
	}
	if want := []ActionKind{Merge, Merge, Advance, Pull, Release, Pull, Release}; !slices.Equal(kinds, want) {
		t.Errorf("the last message causes %v, want %v", kinds, want)
	}
	if err := c.Synchronize(false); err != nil {
		t.Fatal(err)
	}
	if first, err = c.Update(1, 2); err != nil || len(first) == 0 || first[len(first)-1].Kind != Release {
		t.Errorf("the first message of a round that is not: %v, %v", first, err)
	}
}
