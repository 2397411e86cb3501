package tuner

import (
	"errors"
	"fmt"
	"slices"
)

// Curve is a quantity by the number of samples in a micro-batch: straight lines t0 + t1 b between the measured sizes.
type Curve struct {
	Samples []int // ascending
	Values  []float64
}

// FitCurve fits a curve to measurements, several of each size, that cannot fall as the size grows: of each size the trimmed mean, and
// where these fall nevertheless, the mean of the neighbours that do (pool adjacent violators, Ayer et al. 1955: the
// non-decreasing values of least squared error). With two sizes it is t(b) = t0 + t1 b; a third bends the line
// where the device's kernels change their pace.
func FitCurve(measured map[int][]float64) (Curve, error) {
	var c Curve
	for n := range measured {
		c.Samples = append(c.Samples, n)
	}
	slices.Sort(c.Samples)
	var weights []float64
	for _, n := range c.Samples {
		if len(measured[n]) == 0 {
			return c, fmt.Errorf("no measurement at %d samples", n)
		}
		c.Values = append(c.Values, TrimmedMean(measured[n]))
		weights = append(weights, float64(len(measured[n])))
	}
	c.Values = nonDecreasing(c.Values, weights)
	return c, c.Validate()
}

// Validate refuses what At cannot answer from.
func (c Curve) Validate() error {
	if len(c.Samples) == 0 || len(c.Samples) != len(c.Values) {
		return errors.New("measured at no size")
	}
	for i, v := range c.Values {
		switch {
		case !positive(v):
			return fmt.Errorf("%v at %d samples; want finite, at least 0", v, c.Samples[i])
		case c.Samples[i] < 1 || i > 0 && c.Samples[i] <= c.Samples[i-1]:
			return fmt.Errorf("measured at %v samples; want ascending sizes, at least 1", c.Samples)
		}
	}
	return nil
}

// At is the value at n samples: between two measured sizes on the straight line through them; beyond them on the line of the
// nearest two, but below the smallest never less than in proportion. One size alone goes in proportion. The curve is valid.
func (c Curve) At(n int) float64 {
	last := len(c.Samples) - 1
	if last == 0 {
		return c.Values[0] * float64(n) / float64(c.Samples[0])
	}
	i, _ := slices.BinarySearch(c.Samples, n)
	i = min(max(i, 1), last)
	x0, x1 := float64(c.Samples[i-1]), float64(c.Samples[i])
	slope := (c.Values[i] - c.Values[i-1]) / (x1 - x0)
	value := c.Values[i-1] + slope*(float64(n)-x0)
	if n < c.Samples[0] {
		return max(value, c.Values[0]*float64(n)/x0)
	}
	return value
}

// Line is the straight line t0 + t1 b that is nearest to the measured sizes, relative to their values: for people, and for
// extrapolation far beyond what was measured. t0 and t1 are at least 0.
func (c Curve) Line() (t0, t1 float64) {
	var w, x, y, xx, xy float64
	for i, v := range c.Values {
		weight := 1.0
		if v > 0 {
			weight = 1 / (v * v)
		}
		n := float64(c.Samples[i])
		w, x, y, xx, xy = w+weight, x+weight*n, y+weight*v, xx+weight*n*n, xy+weight*n*v
	}
	if d := w*xx - x*x; d > 1e-12*w*xx {
		t1 = (w*xy - x*y) / d
		t0 = (y - t1*x) / w
	}
	if t0 <= 0 { // through the origin
		t0, t1 = 0, xy/xx
	}
	if t1 < 0 {
		t0, t1 = y/w, 0
	}
	return t0, t1
}

// TrimmedMean is the mean of values without the lowest and highest tenth, at least one of each where there are four or more; 0 of
// none. A batch is a sum of passes, and times have a long tail, so their median would predict it too short.
func TrimmedMean(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n >= 4 {
		cut := max(1, n/10)
		sorted = sorted[cut : n-cut]
	}
	sum := 0.0
	for _, v := range sorted {
		sum += v
	}
	return sum / float64(max(len(sorted), 1))
}

// nonDecreasing returns the non-decreasing values of least weighted squared error.
func nonDecreasing(values, weights []float64) []float64 {
	type block struct {
		mean, weight float64
		n            int
	}
	var blocks []block
	for i, v := range values {
		blocks = append(blocks, block{v, weights[i], 1})
		for n := len(blocks); n > 1 && blocks[n-2].mean > blocks[n-1].mean; n-- {
			a, b := blocks[n-2], blocks[n-1]
			w := a.weight + b.weight
			blocks = append(blocks[:n-2], block{(a.mean*a.weight + b.mean*b.weight) / w, w, a.n + b.n})
		}
	}
	var out []float64
	for _, b := range blocks {
		out = append(out, slices.Repeat([]float64{b.mean}, b.n)...)
	}
	return out
}
