package schedule

import (
	"math"
	"strconv"
)

// scaleOf is how many columns (or pixels) a unit of time gets so that the shortest op that takes any time is cell wide, in a
// drawing of at most limit.
func scaleOf(r Result, cell, limit float64) float64 {
	shortest := math.Inf(1)
	for _, spans := range r.Spans {
		for _, s := range spans {
			if d := s.End - s.Start; d > 0 {
				shortest = min(shortest, d)
			}
		}
	}
	if r.Makespan <= 0 {
		return 0
	}
	return min(cell/shortest, limit/r.Makespan)
}

// ticksOf are the round times of an axis, at least apart columns (or pixels) from each other.
func ticksOf(r Result, scale, apart float64) []float64 {
	if scale <= 0 {
		return []float64{0}
	}
	step := math.Pow(10, math.Floor(math.Log10(apart/scale)))
	for _, times := range []float64{1, 2, 5, 10} {
		if step*times*scale >= apart {
			step *= times
			break
		}
	}
	var ticks []float64
	for i := 0; float64(i)*step <= r.Makespan; i++ {
		ticks = append(ticks, float64(i)*step)
	}
	return ticks
}

// formatTime prints a time to at most six digits.
func formatTime(t float64) string { return strconv.FormatFloat(t, 'g', 6, 64) }

// percentBusy is the share of the makespan in which stage k computes, in percent.
func percentBusy(r Result, k int) float64 {
	if r.Makespan <= 0 {
		return 0
	}
	return 100 * r.Busy[k] / r.Makespan
}
