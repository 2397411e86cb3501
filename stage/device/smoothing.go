package device

// SmoothedLosses are losses against softened targets.
type SmoothedLosses interface {
	// SmoothedCrossEntropy is CrossEntropy against a target distribution that has 1 - smoothing at the target and smoothing
	// spread evenly over all V (Szegedy et al. 2016, section 7). 0 <= smoothing < 1.
	SmoothedCrossEntropy(losses, dlogits, logits, targets Mem, rows, vocabulary int, scale, smoothing float32)
}
