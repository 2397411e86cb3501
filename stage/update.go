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
	loss := c.total(c.lossSum) / c.lossWeight
	if err := c.dev.Synchronize(); err != nil {
		return 0, fmt.Errorf("%s: loss: %w", c.config.what(), err)
	}
	return loss, c.finite("loss", loss)
}

func (c *Computed) finite(what string, value float64) error {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return &NonFiniteError{What: what, Stage: c.config.Index, Step: c.step, Value: value}
	}
	return nil
}

// SumTies implements Stage, once for each batch.
func (c *Computed) SumTies() {
	if c.tiesSummed {
		return
	}
	if c.fresh { // no backward has run
		c.run(c.between.fresh, device.Args{})
		c.fresh = false
	}
	c.run(c.between.ties, device.Args{})
	c.tiesSummed = true
	if c.final.tied != nil {
		c.final.tied(0)
	}
}

// addSquares has the squares of the gradients added to a sum, by the programs that run before squares reads it.
func (c *Computed) addSquares(sum float64) {
	c.sentSum[0], c.measured = sum, true
	c.dev.Upload(c.sum, device.DoubleBytes(c.sentSum[:]))
	c.bindSum(c.sum)
}

// squares is the sum.
func (c *Computed) squares() (float64, error) {
	c.dev.Download(device.DoubleBytes(c.foundSum[:]), c.sum)
	if err := c.dev.Synchronize(); err != nil {
		return 0, fmt.Errorf("%s: gradient norm: %w", c.config.what(), err)
	}
	return c.foundSum[0], c.finite("gradient norm", math.Sqrt(c.foundSum[0]))
}

// SquaredNorm implements Stage: sum = sum + |g|^2 tensor by tensor, so that stages which pass the sum along do the same
// additions as one stage that has all tensors.
func (c *Computed) SquaredNorm(sum float64) (float64, error) {
	if c.config.ForwardOnly {
		return sum, nil
	}
	c.SumTies()
	c.addSquares(sum)
	c.run(c.between.norm, device.Args{})
	return c.squares()
}

// Step implements Stage. Adam's bias correction takes h.Step+1 as the number of updates, this one included, since its
// moments were zero (Kingma and Ba 2015, algorithm 1): whoever starts with fresh State counts from 0 again.
func (c *Computed) Step(h Hyper, delta flat.Vector) error {
	fail := func(err error) error { return fmt.Errorf("%s: optimizer step %d: %w", c.config.what(), h.Step, err) }
	if c.config.ForwardOnly {
		return fail(errors.New("the stage is forward-only"))
	}
	of, err := c.updateOf(h.Elements)
	if err != nil {
		return fail(err)
	}
	c.begin(device.UpdateWork)
	c.SumTies()
	if err := c.bindDelta(delta); err != nil {
		return fail(fmt.Errorf("delta: %w", err))
	}
	if err := c.stash(h.Stash); err != nil {
		return fail(err)
	}
	measured := c.measured
	if c.bindSum(device.Mem{}); !measured {
		c.addSquares(0)
	}
	if delta != nil {
		c.run(of.leave, device.Args{})
	}
	c.run(of.step, device.Args{Update: c.config.Optimizer.update(h)})
	if delta != nil {
		c.run(of.back, device.Args{})
	}
	if h.Elements != (flat.Range{}) {
		c.measured = measured // the others' gradients have yet to be looked at
	}
	c.newest, c.begun = h.Version, false
	c.copies.of, c.copies.writes = c.parameters, device.Writes(c.parameters)
	if c.reads != parameter {
		c.copies.of = nil
	}
	c.predicted.end()
	if !measured {
		_, err := c.squares()
		return err
	}
	if err := c.end(); err != nil {
		return fail(err)
	}
	return nil
}

// bindDelta binds a vector that a step adds to, or none.
func (c *Computed) bindDelta(v flat.Vector) (err error) {
	var whole device.Mem
	if v != nil {
		whole, err = c.vector(v)
	}
	if err == nil {
		c.bindVector(delta, whole)
	}
	return err
}

// makeWeights makes the weights of a batch that has not begun: what asgd computes with is the average and what the iterate is
// ahead of it. Averaging between pipelines, which moves the parameters, so moves the iterate along, and weights that nobody predicted.
func (c *Computed) makeWeights() {
	if c.begun {
		return
	}
	c.begun = true
	if c.iterates() {
		c.run(c.between.iterate, device.Args{})
		c.copies.of = nil
	}
	c.follow()
}

// ZeroGradients implements Stage. Those that a product makes are set by the first weight half of the batch.
func (c *Computed) ZeroGradients() {
	if c.gradients != nil {
		c.run(c.between.batch, device.Args{})
		c.fresh = true
	}
	if c.last {
		c.dev.Do(&c.noLoss)
	}
	c.lossWeight, c.tiesSummed, c.measured, c.begun = 0, false, false, false
}
