package device

import "math"

// Update are the numbers of an optimizer step that change from one to the next. A program's steps take them from Args.
type Update struct {
	LearningRate             float32
	GradScale                float32 // the clip factor: the gradient used is GradScale * g
	Correction1, Correction2 float32 // of AdamStep: 1 - Beta1^t and 1 - Beta2^t
	First                    bool    // of SGDStep: the momentum buffer is still empty
	// Share, of ASGDStep, is how far the average moves toward the new iterate: 1/n when it then covers n iterates; 1 before averaging
	// starts, when the average is the iterate.
	Share float32
}

func (u *Update) set(now Update) { *u = now }

// Adam holds the coefficients of one Adam or AdamW step on one run of parameters.
// Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2.
type Adam struct {
	Update
	Beta1, Beta2 float32
	Epsilon      float32
	WeightDecay  float32
	Decoupled    bool // AdamW: decay the parameter itself; else add WeightDecay*p to the gradient
}

// SGD holds the coefficients of one SGD step, PyTorch's definition: m = flush(Momentum m + g) (flush(g) at the first step);
// the update is LearningRate * (Nesterov ? g + Momentum m : m).
type SGD struct {
	Update
	Momentum    float32
	Nesterov    bool
	WeightDecay float32
}

// ASGD holds the coefficients of one step of averaged SGD on one run of parameters; see ASGDStep.
type ASGD struct {
	Update
	WeightDecay float32 // added to the gradient, times the iterate
}

// Derived are the coefficients that AdamStep applies to every element, computed in one place so that every device uses
// the same bits:
//
//	grad = GradScale g + coupled p;   m = flush(Beta1 m + (1 - Beta1) grad);   v = flush(Beta2 v + (1 - Beta2) grad^2)
//	p = keep p - rate (m / (sqrt(v) / root + Epsilon))
func (a Adam) Derived() (coupled, keep, rate, root float32) {
	coupled, keep = a.WeightDecay, 1
	if a.Decoupled {
		coupled, keep = 0, 1-float32(a.LearningRate*a.WeightDecay)
	}
	return coupled, keep, a.LearningRate / a.Correction1, float32(math.Sqrt(float64(a.Correction2)))
}

// Tiny bounds the state of an optimizer from below. Moments of parameters without gradients shrink at every step; processors are up to a
// hundred times slower on what they end as (numbers below 1.2e-38, denormals), and may be set to take those for 0.
const Tiny = 1e-30

// Flush is what an optimizer keeps of x: 0 where |x| < Tiny, else x. A NaN stays one.
func Flush(x float32) float32 {
	if x > -Tiny && x < Tiny {
		return 0
	}
	return x
}

// SquaredNorm adds |X|^2 to Sum, one F64. It accumulates in F64, in a fixed order.
type SquaredNorm struct{ Sum, X Mem }

// Operations that turn gradients into updates: one step of the optimizer on a run of parameters. Every product is rounded before its
// sum, and state (M, V and S) is flushed as Flush does before anything reads it (exact on every device, so that the two copies of a tied
// parameter stay equal). Three operands may be absent, and save passes over memory: Delta += (P after) - (P before); Copy16 = P after,
// rounded as Copy rounds to BF16; Sum += |G|^2, as SquaredNorm does.
type (
	// AdamStep updates P, M and V from G as Adam.Derived writes it.
	AdamStep struct {
		P, M, V, Delta, Copy16, Sum, G Mem
		Adam
	}
	// SGDStep updates P and, when Momentum is not 0, the momentum buffer M.
	SGDStep struct {
		P, M, Delta, Copy16, Sum, G Mem
		SGD
	}
	// ASGDStep takes one step of SGD from the iterate P + S, and averages the iterates (Polyak and Juditsky 1992).
	//
	//	ahead = s - LearningRate (GradScale g + WeightDecay (p + s));   p = p + Share ahead;   s = flush(ahead - Share ahead)
	ASGDStep struct {
		P, S, Delta, Sum, G Mem
		ASGD
	}
)

func (o *SquaredNorm) check(c checks) {
	c.need(F64, 1, &o.Sum)
	c.need(F32, o.X.n, &o.X)
}

func (o *AdamStep) check(c checks) {
	c.need(F32, o.P.n, &o.P, &o.G, &o.M, &o.V)
	c.step(o.P.n, &o.Delta, &o.Copy16, &o.Sum)
}

func (o *SGDStep) check(c checks) {
	if c.need(F32, o.P.n, &o.P, &o.G); o.Momentum != 0 {
		c.need(F32, o.P.n, &o.M)
	}
	c.step(o.P.n, &o.Delta, &o.Copy16, &o.Sum)
}

func (o *ASGDStep) check(c checks) {
	c.need(F32, o.P.n, &o.P, &o.G, &o.S)
	c.step(o.P.n, &o.Delta, &Mem{}, &o.Sum)
}

// step checks the operands that any step may have beside its parameters.
func (c checks) step(parameters int, delta, copy16, sum *Mem) {
	c.optional(F32, parameters, delta)
	c.optional(BF16, parameters, copy16)
	c.optional(F64, 1, sum)
}
