package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Optimizer says how gradients become updates. The learning rate is not here: it changes from step to step and arrives in
// Hyper (see Schedule).
type Optimizer struct {
	// Name is "sgd", "adam", "adamw" (default) or "asgd": SGD whose iterates are averaged from step T0 on (Polyak and Juditsky
	// 1992; Merity et al. 2018, section 3). The parameters, and with them the center, what is evaluated and what is exported,
	// are the average; gradients are taken at the iterate.
	Name string
	// Momentum is sgd's, in [0,1); default 0. Nesterov needs it above 0.
	Momentum float64
	Nesterov bool
	// Betas are adam's and adamw's decay rates, in [0,1) in float32; nil means the defaults 0.9 and 0.999.
	Betas []float64
	// Epsilon is adam's and adamw's, at least 1e-15: moments that small are flushed (device.Tiny). Default 1e-8.
	Epsilon float64
	// WeightDecay applies to matrices only (parameters of two dimensions and more), never to biases and norms. adamw
	// decays the parameter itself (Loshchilov and Hutter 2019); sgd, asgd and adam add WeightDecay * p to the gradient.
	WeightDecay float64
	// T0 is asgd's, PyTorch's t0: up to this step of the run the average is the iterate; then it covers the iterates since.
	T0 uint64
}

var optimizers = []string{"adam", "adamw", "asgd", "sgd"}

func (o Optimizer) withDefaults() Optimizer {
	if o.Name == "" {
		o.Name = "adamw"
	}
	if o.Betas == nil {
		o.Betas = []float64{0.9, 0.999}
	}
	if o.Epsilon == 0 {
		o.Epsilon = 1e-8
	}
	return o
}

// Validate reports the first value that is out of range. The zero Optimizer is valid: adamw with its defaults.
func (o Optimizer) Validate() error {
	o = o.withDefaults()
	if !slices.Contains(optimizers, o.Name) {
		return fmt.Errorf("optimizer name: %q is not one of %s", o.Name, strings.Join(optimizers, ", "))
	}
	if !(o.Momentum >= 0 && o.Momentum < 1) {
		return fmt.Errorf("optimizer %s: momentum is %v; it is at least 0 and below 1", o.Name, o.Momentum)
	}
	if len(o.Betas) != 2 {
		return fmt.Errorf("optimizer %s: %d betas; there are 2", o.Name, len(o.Betas))
	}
	for i, beta := range o.Betas {
		if !(beta >= 0 && float32(beta) < 1) {
			return fmt.Errorf("optimizer %s: betas[%d] is %v; it is at least 0 and below 1 in float32", o.Name, i, beta)
		}
	}
	if o.Nesterov && o.Momentum == 0 {
		return fmt.Errorf("optimizer %s: nesterov needs a momentum above 0", o.Name)
	}
	if least := math.Sqrt(device.Tiny); !(o.Epsilon >= least) || math.IsInf(o.Epsilon, 0) {
		return fmt.Errorf("optimizer %s: epsilon is %v; it is at least %v", o.Name, o.Epsilon, least)
	}
	if !(o.WeightDecay >= 0) || math.IsInf(o.WeightDecay, 0) {
		return fmt.Errorf("optimizer %s: weight decay is %v; it is at least 0", o.Name, o.WeightDecay)
	}
	return nil
}

// StateVectors is how many flat vectors of state the optimizer keeps: momentum; first and second moment; or, of asgd, how far
// the iterate is ahead of the average, and the iterate, which the next forward makes anew from the two.
func (o Optimizer) StateVectors() int {
	switch {
	case o.withDefaults().Name != "sgd":
		return 2
	case o.Momentum != 0:
		return 1
	}
	return 0
}

// Adaptive reports whether the named optimizer divides its updates by the size of the gradients, as the Adam family does.
func Adaptive(name string) bool { return name == "adam" || name == "adamw" }

// update is what changes from step to step.
func (o Optimizer) update(h Hyper) device.Update {
	return device.Update{
		LearningRate: h.LearningRate, GradScale: h.GradScale, First: h.Step == 0, Share: o.averageShare(h),
		Correction1: correction(o.Betas[0], h.Step), Correction2: correction(o.Betas[1], h.Step),
	}
}

// correction is that of Adam's bias, for the decay rate that devices apply: 1 - float32(0.999) is 1.3e-5 less than 0.001.
func correction(beta float64, step uint64) float32 {
	return float32(1 - math.Pow(float64(float32(beta)), float64(step+1)))
}

// averageShare is how far asgd's average moves toward the iterate of a step: 1/n where it is then the average of n iterates.
func (o Optimizer) averageShare(h Hyper) float32 {
	covered := uint64(1)
	if run := h.Before + h.Step; run > o.T0 {
		covered = min(run-o.T0, h.Step+1) // after a loss of state an average begins anew
	}
	return float32(1 / float64(covered))
}

// Schedule gives the learning rate of each step.
type Schedule struct {
	// Name is "constant", "linear" or "cosine" (Loshchilov and Hutter 2017, equation 5, without restarts).
	Name string
	// Peak is the learning rate after warm-up.
	Peak float64
	// Warmup is the number of steps over which the rate rises linearly to Peak: step s has Peak*(s+1)/Warmup.
	Warmup uint64
	// Steps is the number of steps of the run. linear and cosine fall from Peak, at step Warmup, to Peak*MinRatio at step
	// Steps and stay there.
	Steps uint64
	// MinRatio is the final rate as a share of Peak, in [0,1].
	MinRatio float64
}

var schedules = map[string]func(done float64) float64{ // share of the run after warm-up, 0..1 -> share of the way down left
	"constant": func(float64) float64 { return 1 },
	"linear":   func(done float64) float64 { return 1 - done },
	"cosine":   func(done float64) float64 { return (1 + math.Cos(math.Pi*done)) / 2 },
}

// Validate reports the first value that is out of range.
func (s Schedule) Validate() error {
	if schedules[s.Name] == nil {
		return fmt.Errorf("learning-rate schedule: %q is not one of constant, cosine, linear", s.Name)
	}
	if !(s.Peak > 0) || math.IsInf(s.Peak, 0) {
		return fmt.Errorf("learning-rate schedule %s: the learning rate is %v; it is above 0", s.Name, s.Peak)
	}
	if !(s.MinRatio >= 0 && s.MinRatio <= 1) {
		return fmt.Errorf("learning-rate schedule %s: the minimum ratio is %v; it lies in 0..1", s.Name, s.MinRatio)
	}
	return nil
}

// At is the learning rate of a step, counted from 0. It is a pure function: a resumed run gets the same rates.
func (s Schedule) At(step uint64) float64 {
	if step < s.Warmup {
		return s.Peak * float64(step+1) / float64(s.Warmup)
	}
	done := 1.0
	if step < s.Steps {
		done = float64(step-s.Warmup) / float64(s.Steps-s.Warmup)
	}
	return s.Peak * (s.MinRatio + (1-s.MinRatio)*schedules[s.Name](done))
}

// ClipFactor is what to scale gradients by so that their global norm does not exceed limit: limit / (norm + 1e-6), at
// most 1, as PyTorch's clip_grad_norm_ does (Pascanu et al. 2013, algorithm 1). squared is the sum of all stages'
// SquaredNorm; limit 0 means no clipping.
func ClipFactor(squared, limit float64) float32 {
	if limit <= 0 {
		return 1
	}
	return float32(min(1, limit/(math.Sqrt(squared)+1e-6)))
}
