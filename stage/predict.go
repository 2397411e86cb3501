package stage

import (
	"errors"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
)

// prediction is the weights that passes read where they are not the parameters: x^ beside x (Chen et al. 2022, SAPipe, weight prediction). They
// are made of the parameters again after each step, so nothing is kept of them from one batch to the next.
type prediction struct {
	weights  flat.Vector  // nil where the stage does not predict
	made     bool         // by Predict since the last step; else they are the parameters
	writes   uint64       // how often the weights had been written at the last step: whoever writes them since has made them, too
	elements []flat.Range // those of the program in between.predict
}

// end says that the weights are the parameters.
func (p *prediction) end() {
	if p.made = false; p.weights != nil {
		p.writes = device.Writes(p.weights)
	}
}

// chunk is how many elements are predicted at a time. A step changes its state, so that of a prediction works on a copy, which need not leave
// the cache. On a device with memory of its own each operation is a launch, which takes some microseconds however little it does.
func (c *Computed) chunk() (n int) {
	for _, t := range c.tensors {
		n = max(n, t.param.Len())
	}
	if c.host {
		return min(n, 1<<15)
	}
	return min(n, 1<<20)
}

// predictionScratch is the bytes of these copies. They lie where passes have their intermediate values.
func (c *Computed) predictionScratch() int {
	if !c.config.Predicts {
		return 0
	}
	return c.shape.StateVectors * layer.Padded(c.chunk()) * device.F32.Bytes()
}

func (c Config) checkPrediction() error {
	switch {
	case !c.Predicts:
	case c.Optimizer.Name == "asgd":
		return errors.New("weights cannot be predicted with the optimizer asgd, whose passes read its iterates: use sgd, adam or adamw, or predict nothing")
	case c.Versions > 1:
		return fmt.Errorf("weights cannot be predicted where passes read %d versions of them: use a plan that steps at the end of a batch, or predict nothing", c.Versions)
	}
	return nil
}

// Predict implements Stage. It runs the operations of Step.
func (c *Computed) Predict(h Hyper, g flat.Vector, elements ...flat.Range) error {
	p, err := c.predictionOf(elements)
	if err == nil {
		err = c.bindExpected(g, len(elements) > 0)
	}
	if err == nil {
		c.begin(device.UpdateWork)
		c.run(p, device.Args{Update: c.config.Optimizer.update(h)})
		c.begun, c.predicted.made, c.copies.of = false, true, nil
		err = c.end()
	}
	if err != nil {
		return fmt.Errorf("%s: predict the weights of step %d: %w", c.config.what(), h.Step, err)
	}
	return nil
}

// predictionOf is the program that predicts some elements.
func (c *Computed) predictionOf(elements []flat.Range) (*program.Program, error) {
	x := &c.predicted
	switch {
	case x.weights == nil:
		return nil, errors.New("the stage has no memory for them: set Config.Predicts")
	case slices.ContainsFunc(c.slots, func(s slot) bool { return s.state != free }):
		return nil, errors.New("micro-batches in flight read the weights that are; predict after the last backward of a batch and before the first forward of the next")
	case len(elements) == 0:
		return c.between.follow, nil
	case slices.Equal(elements, x.elements):
		return c.between.predict, nil
	}
	if err := c.checkElements(elements...); err != nil {
		return nil, err
	}
	x.elements = slices.Clone(elements)
	c.between.predict = c.writePrediction(x.elements)
	return c.between.predict, nil
}

// bindExpected binds the gradient of a prediction, if it reads one.
func (c *Computed) bindExpected(g flat.Vector, needed bool) error {
	if !needed {
		return nil
	}
	whole, err := c.vector(g)
	if err != nil {
		return fmt.Errorf("gradient: %w", err)
	}
	c.bindVector(expected, whole)
	return nil
}

// follow makes the weights of a batch those of the parameters where nobody has predicted them.
func (c *Computed) follow() {
	if x := &c.predicted; x.weights != nil && !x.made && device.Writes(x.weights) == x.writes {
		c.run(c.between.follow, device.Args{})
		c.copies.of = nil
	}
}

// Predicted implements Stage.
func (c *Computed) Predicted() flat.Vector {
	if !c.begun {
		c.follow()
	}
	return c.predicted.weights
}

// writePrediction writes the program that makes the weights of a batch: some by a step of the optimizer on copies of the parameters and
// of its state, others as the parameters are. A copy of another tensor of the stage is made of all that the other is made of, so it has its bits.
func (c *Computed) writePrediction(elements []flat.Range) *program.Program {
	if !c.config.Predicts {
		return nil
	}
	original := map[int]int{}
	for _, p := range c.pairs {
		original[p[1]] = p[0]
	}
	chunk := c.chunk()
	var scratch [2]device.Mem
	return c.write(func(*tensor) bool { return true }, func(d *draft, i int) {
		of, tied := original[i]
		if !tied {
			of = i
		}
		if t := &d.tensors[of]; t.param.Running > 0 || !slices.ContainsFunc(elements, t.within) {
			d.Do(&device.Copy{Y: d.of(predicted, i), X: d.of(parameter, of)})
			return
		}
		if scratch[0].Absent() {
			for k := range d.shape.StateVectors {
				scratch[k] = d.New(device.F32, chunk)
			}
		}
		for at, n := 0, d.tensors[of].Len(); at < n; at += chunk {
			d.predict(i, of, at, min(chunk, n-at), &scratch)
		}
	})
}

// predict writes what makes n elements of tensor i of the prediction from those of a tensor of the parameters.
func (d *draft) predict(i, of, at, n int, scratch *[2]device.Mem) {
	part := func(r role, i int) device.Mem { return d.of(r, i).Slice(at, n) }
	x := operands{p: part(predicted, i), g: part(expected, of)}
	d.Do(&device.Copy{Y: x.p, X: part(parameter, of)})
	for k := range d.shape.StateVectors {
		x.state[k] = scratch[k].Slice(0, n)
		d.Do(&device.Copy{Y: x.state[k], X: part(firstState+role(k), of)})
	}
	d.Do(d.config.Optimizer.operation(&d.tensors[of], &x))
}
