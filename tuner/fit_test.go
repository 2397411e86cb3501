package tuner

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// Two sizes are a line: t(b) = t0 + t1 b.
func TestTwoSizesAreALine(t *testing.T) {
	c, err := FitCurve(map[int][]float64{2: {0.9, 1, 1.1}, 6: {3, 3, 3}})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]float64{1: 0.5, 2: 1, 4: 2, 6: 3, 8: 4} {
		near(t, "t(b)", c.At(n), want)
	}
	t0, t1 := c.Line()
	near(t, "t0", t0, 0)
	near(t, "t1", t1, 0.5)
}

func TestTheThirdSizeBendsTheLine(t *testing.T) {
	c, err := FitCurve(map[int][]float64{1: {1}, 4: {2}, 16: {20}})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]float64{1: 1, 2: 4. / 3, 4: 2, 10: 11, 16: 20, 32: 44} {
		near(t, "t(b)", c.At(n), want)
	}
}

// A line that is steep between the measured sizes would predict less than nothing below them.
func TestBelowTheSmallestSizeATimeIsInProportionAtLeast(t *testing.T) {
	c := Curve{Samples: []int{8, 16}, Values: []float64{1, 10}}
	near(t, "t(4)", c.At(4), 0.5)
	near(t, "one size alone", Curve{Samples: []int{8}, Values: []float64{4}}.At(2), 1)
}

func TestATimeNeverFallsAsTheSizeGrows(t *testing.T) {
	c, err := FitCurve(map[int][]float64{1: {2}, 2: {4, 4, 4}, 4: {1}, 8: {9}})
	if err != nil {
		t.Fatal(err)
	}
	// 4 (three times) and 1 pool to 3.25.
	if !slices.Equal(c.Values, []float64{2, 3.25, 3.25, 9}) {
		t.Errorf("values are %v", c.Values)
	}
}

// nonDecreasing has the least error of all non-decreasing sequences: no small change of a block improves it.
func TestPoolingLosesLeast(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		var values, weights []float64
		for range 2 + r.IntN(5) {
			values, weights = append(values, float64(r.IntN(10))), append(weights, float64(1+r.IntN(3)))
		}
		loss := func(fit []float64) (sum float64) {
			for i, v := range fit {
				sum += weights[i] * (v - values[i]) * (v - values[i])
			}
			return sum
		}
		got := nonDecreasing(values, weights)
		if !slices.IsSorted(got) {
			t.Fatalf("%v became %v", values, got)
		}
		least := loss(got)
		for range 200 { // any non-decreasing sequence nearby
			other := slices.Clone(got)
			for i := range other {
				other[i] += r.NormFloat64() / 4
			}
			slices.Sort(other)
			if loss(other) < least-1e-9 {
				t.Fatalf("%v became %v with error %v; %v has %v", values, got, least, other, loss(other))
			}
		}
	}
}

func TestLineIsTheNearestByRelativeError(t *testing.T) {
	t0, t1 := Curve{Samples: []int{1, 2, 4, 8}, Values: []float64{5, 7, 11, 19}}.Line()
	near(t, "t0", t0, 3)
	near(t, "t1", t1, 2)
	t0, t1 = Curve{Samples: []int{1, 2}, Values: []float64{1, 4}}.Line() // its intercept would be -2
	if t0 != 0 || t1 < 1 || t1 > 2 {
		t.Errorf("line is %v + %v b, want one through the origin", t0, t1)
	}
}

func TestCurvesThatCannotBeAreRefused(t *testing.T) {
	for want, measured := range map[string]map[int][]float64{
		"no size":        {},
		"no measurement": {1: {}},
		"NaN":            {1: {math.NaN()}},
		"-1":             {1: {-1}},
		"at least 1":     {0: {1}},
	} {
		if _, err := FitCurve(measured); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error is %v, want %q", measured, err, want)
		}
	}
}

// A batch is the sum of its passes: times with a long tail are predicted by their mean, without single ones that a host has disturbed.
func TestTimesAreTrimmedMeans(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{1, 2, 6}, 3},
		{[]float64{9, 1, 2, 4}, 3},
		{[]float64{1, 1, 1, 1, 1, 1, 3, 3, 3, 100}, 1.75},
	} {
		if got := TrimmedMean(c.values); got != c.want {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
	}
}
