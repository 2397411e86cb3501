package device

// ASGD holds the coefficients of one step of averaged SGD on one run of parameters; see AveragedOptimizers.
type ASGD struct {
	LearningRate float32
	WeightDecay  float32 // added to the gradient, times the iterate
	GradScale    float32 // the clip factor: the gradient used is GradScale * g
	// Share is how far the average moves toward the new iterate: 1/n when it then covers n iterates; 1 before averaging
	// starts, when the average is the iterate.
	Share float32
}

// AveragedOptimizers average the iterates of an optimizer (Polyak and Juditsky 1992).
type AveragedOptimizers interface {
	// ASGDStep takes one step of SGD from the iterate p + s, and averages. Every product is rounded before its sum (exact on
	// every device). Unless delta is absent, delta += (p after) - (p before).
	//
	//	ahead = s - LearningRate (GradScale g + WeightDecay (p + s));   p = p + Share ahead;   s = ahead - Share ahead
	ASGDStep(p, g, s, delta Mem, a ASGD)
}

// CheckASGD panics unless the operands of ASGDStep fit.
func CheckASGD(p, g, s, delta Mem) {
	const op = "ASGDStep"
	Need(op, "p", p, F32, p.n)
	Need(op, "g", g, F32, p.n)
	Need(op, "s", s, F32, p.n)
	if !delta.Absent() {
		Need(op, "delta", delta, F32, p.n)
	}
}
