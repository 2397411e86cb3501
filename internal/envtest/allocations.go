package envtest

import "testing"

// Allocations is how many allocations a call of run makes: the least of several measurements. testing.AllocsPerRun counts those of the whole process,
// so that what happens to run beside it, a collection of garbage or the end of another test's goroutine, would count as the call's.
func Allocations(runs int, run func()) float64 {
	least := testing.AllocsPerRun(runs, run)
	for again := 0; again < 4 && least > 0; again++ {
		least = min(least, testing.AllocsPerRun(runs, run))
	}
	return least
}
