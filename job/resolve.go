package job

// NearestDivisors returns the largest divisor of batch that is at most n and the smallest that is at least n; 0 for one
// that does not exist.
func NearestDivisors(batch, n int) (below, above int) {
	for d := min(n, batch); d >= 1; d-- {
		if batch%d == 0 {
			below = d
			break
		}
	}
	for d := max(n, 1); d <= batch; d++ {
		if batch%d == 0 {
			above = d
			break
		}
	}
	return below, above
}
