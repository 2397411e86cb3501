package stage

import (
	"errors"
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// Loss implements Stage. Each micro-batch's mean over its valid targets counts with the micro-batch's weight.
func (c *Computed) Loss() (float64, error) {
	if !c.last || c.lossWeight == 0 {
		return 0, nil
	}
	c.dev.Download(device.FloatBytes(c.hostLosses), c.lossSum)
	if err := c.dev.Synchronize(); err != nil {
		return 0, fmt.Errorf("%s: loss: %w", c.config.what(), err)
	}
	sum := 0.0
	for _, l := range c.hostLosses {
		sum += float64(l)
	}
	loss := sum / c.lossWeight
	return loss, c.finite("loss", loss)
}

func (c *Computed) finite(what string, value float64) error {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return &NonFiniteError{What: what, Stage: c.config.Index, Step: c.step, Value: value}
	}
	return nil
}

// sumTies adds the gradients of copies that lie on this stage, once a batch. The sum of two numbers does not depend on
// their order, so it has the bits that two stages get which add each other's.
func (c *Computed) sumTies() {
	if c.tiesSummed {
		return
	}
	if c.fresh { // no backward has run
		c.zeroGradients(true)
		c.fresh = false
	}
	for _, p := range c.pairs {
		original, copied := c.grads[p[0]], c.grads[p[1]]
		c.dev.Do(&device.Add{Out: original, A: original, B: copied})
		c.dev.Do(&device.Copy{Y: copied, X: original})
	}
	c.tiesSummed = true
}

// SquaredNorm implements Stage: sum = sum + |g|^2 tensor by tensor, so that stages which pass the sum along do the same
// additions as one stage that has all tensors.
func (c *Computed) SquaredNorm(sum float64) (float64, error) {
	if c.config.ForwardOnly {
		return sum, nil
	}
	c.sumTies()
	for i := range c.tensors {
		if t := &c.tensors[i]; t.TiedTo == "" && t.param.Running == 0 {
			sum += c.dev.Dot(t.g, t.g)
		}
	}
	if err := c.dev.Synchronize(); err != nil {
		return 0, fmt.Errorf("%s: gradient norm: %w", c.config.what(), err)
	}
	return sum, c.finite("gradient norm", math.Sqrt(sum))
}

// Step implements Stage. Adam's bias correction takes h.Step+1 as the number of updates, this one included, since its
// moments were zero (Kingma and Ba 2015, algorithm 1): whoever starts with fresh State counts from 0 again.
func (c *Computed) Step(h Hyper, delta flat.Vector) error {
	if c.config.ForwardOnly {
		return fmt.Errorf("%s: optimizer step %d: %w", c.config.what(), h.Step, errors.New("the stage is forward-only"))
	}
	c.begin(device.UpdateWork)
	c.sumTies()
	var d device.Mem
	if delta != nil {
		var err error
		if d, err = c.vector(delta); err != nil {
			return fmt.Errorf("%s: optimizer step %d: delta: %w", c.config.what(), h.Step, err)
		}
	}
	if err := c.stash(h.Stash); err != nil {
		return fmt.Errorf("%s: optimizer step %d: %w", c.config.what(), h.Step, err)
	}
	o := c.config.Optimizer
	c.newest, c.copies.made = h.Version, false
	for i := range c.tensors {
		t := &c.tensors[i]
		if t.param.Running > 0 {
			c.advance(t, t.cut(d))
			continue
		}
		decay := float32(0)
		if t.param.Decay {
			decay = float32(o.WeightDecay)
		}
		if o.Name == "asgd" {
			c.dev.Do(&device.ASGDStep{P: t.p, G: t.g, S: t.s[0], Delta: t.cut(d), ASGD: device.ASGD{
				LearningRate: h.LearningRate, WeightDecay: decay, GradScale: h.GradScale, Share: o.averageShare(h),
			}})
			continue
		}
		if o.Name == "sgd" {
			c.dev.Do(&device.SGDStep{P: t.p, G: t.g, M: t.s[0], Delta: t.cut(d), SGD: device.SGD{
				LearningRate: h.LearningRate, Momentum: float32(o.Momentum), Nesterov: o.Nesterov,
				First: h.Step == 0, WeightDecay: decay, GradScale: h.GradScale,
			}})
			continue
		}
		c.dev.Do(&device.AdamStep{P: t.p, G: t.g, M: t.s[0], V: t.s[1], Delta: t.cut(d), Adam: device.Adam{
			LearningRate: h.LearningRate, Beta1: float32(o.Beta1), Beta2: float32(o.Beta2), Epsilon: float32(o.Epsilon),
			WeightDecay: decay, Decoupled: o.Name == "adamw", GradScale: h.GradScale,
			Correction1: correction(o.Beta1, h.Step), Correction2: correction(o.Beta2, h.Step),
		}})
	}
	if err := c.dev.Synchronize(); err != nil {
		return fmt.Errorf("%s: optimizer step %d: %w", c.config.what(), h.Step, err)
	}
	return nil
}

// advance moves a running statistic toward the batch's, p = p + Running (g - p), and adds the move to delta.
func (c *Computed) advance(t *tensor, delta device.Mem) {
	if !delta.Absent() {
		c.dev.Do(&device.Axpy{Y: delta, A: -1, X: t.p})
	}
	c.dev.Do(&device.Lerp{Y: t.p, A: t.param.Running, X: t.g})
	if !delta.Absent() {
		c.dev.Do(&device.Axpy{Y: delta, A: 1, X: t.p})
	}
}

func correction(beta float64, step uint64) float32 {
	return float32(1 - math.Pow(beta, float64(step+1)))
}

// iterate makes the weights of a batch that has not begun: what asgd computes with is the average and what the iterate is
// ahead of it. Averaging between pipelines, which moves the parameters, so moves the iterate along.
func (c *Computed) iterate() {
	if c.begun {
		return
	}
	c.begun = true
	if c.config.Optimizer.Name != "asgd" || c.config.ForwardOnly {
		return
	}
	for i := range c.tensors {
		t := &c.tensors[i]
		c.dev.Do(&device.Add{Out: t.s[1], A: t.p, B: t.s[0]})
	}
	c.copies.made = false
}

// zeroGradients sets the gradients of the tensors that are Param.Product, or of the others, to 0.
func (c *Computed) zeroGradients(product bool) {
	for i := range c.tensors {
		if t := &c.tensors[i]; t.param.Product == product {
			c.dev.Do(&device.Zero{X: t.g})
		}
	}
}

// ZeroGradients implements Stage. Those that a product makes are set by the first weight half of the batch.
func (c *Computed) ZeroGradients() {
	if c.gradients != nil {
		c.zeroGradients(false)
		c.fresh = true
	}
	if c.last {
		c.dev.Do(&device.Zero{X: c.lossSum})
	}
	c.lossWeight, c.tiesSummed, c.begun = 0, false, false
}
