package device

import "math"

// Adam holds the coefficients of one Adam or AdamW step on one run of parameters.
// Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2.
type Adam struct {
	LearningRate float32
	Beta1, Beta2 float32
	Epsilon      float32
	WeightDecay  float32
	Decoupled    bool    // AdamW: decay the parameter itself; else add WeightDecay*p to the gradient
	Correction1  float32 // 1 - Beta1^t
	Correction2  float32 // 1 - Beta2^t
	GradScale    float32 // the clip factor: the gradient used is GradScale * g
}

// SGD holds the coefficients of one SGD step, PyTorch's definition: m = Momentum m + g (m = g at the first step);
// the update is LearningRate * (Nesterov ? g + Momentum m : m).
type SGD struct {
	LearningRate float32
	Momentum     float32
	Nesterov     bool
	First        bool // the momentum buffer is still empty
	WeightDecay  float32
	GradScale    float32
}

// Derived are the coefficients that AdamStep applies to every element, computed in one place so that every device uses
// the same bits:
//
//	grad = GradScale g + coupled p;   m = Beta1 m + (1 - Beta1) grad;   v = Beta2 v + (1 - Beta2) grad^2
//	p = keep p - rate (m / (sqrt(v) / root + Epsilon))
func (a Adam) Derived() (coupled, keep, rate, root float32) {
	coupled, keep = a.WeightDecay, 1
	if a.Decoupled {
		coupled, keep = 0, 1-float32(a.LearningRate*a.WeightDecay)
	}
	return coupled, keep, a.LearningRate / a.Correction1, float32(math.Sqrt(float64(a.Correction2)))
}

// Optimizers turn gradients into updates.
type Optimizers interface {
	// AdamStep updates p, m and v from g as Adam.Derived writes it, every product rounded before the sum (exact on every
	// device, so that the two copies of a tied parameter stay equal). Unless delta is absent, delta += (p after) - (p before).
	AdamStep(p, g, m, v, delta Mem, a Adam)
	// SGDStep updates p and, when Momentum is not 0, the momentum buffer m (exact on every device). delta as in AdamStep.
	SGDStep(p, g, m, delta Mem, s SGD)
}
