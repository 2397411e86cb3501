package stage

import (
	"errors"
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
)

// Computed is a Stage that this process computes on a device. All memory is allocated by New; a pass allocates nothing.
type Computed struct {
	config      Config
	dev         device.Device
	host        bool // the device's memory is the host's: boundary buffers are wrapped, not copied
	handed      bool // inputs come in device memory
	first, last bool
	layers      []layer.Layer
	shape       Shape
	passes      passes
	owned       []device.Mem // what Close frees
	price       Bytes        // of what has been allocated
	pretends    bool         // nothing is allocated: what New would is only priced

	tensors               []tensor
	parameters, gradients flat.Vector // gradients is nil when ForwardOnly
	state                 []flat.Vector
	frozen                *Frozen
	copies                copies
	newest                int       // the Hyper.Version of the newest weights
	versions              []version // older ones
	begun                 bool      // a forward has run since the batch began or the last step, so the weights do not change before the next batch
	reads                 role      // what a batch computes with: the parameters, or what is made of them
	predicted             prediction
	evaluated             []device.Mem // of each tensor, what the passes of Evaluate read
	ties                  []Tie
	pairs                 [][2]int // tensors of this stage that are tied to each other: original, copy
	tiesSummed            bool
	fresh                 bool // the gradients of Param.Fresh tensors hold nothing: the next weight half sets them

	slots   []slot
	kept    []device.Mem   // of weight slots that are free
	memory  program.Memory // of the pass that runs
	between between
	final   finals
	staged  staged
	buffers Buffers

	losses     device.Mem  // (targets) of one micro-batch
	lossSum    device.Mem  // (targets) weighted, of the micro-batches since ZeroGradients
	noLoss     device.Zero // of lossSum
	lossWeight float64
	hostLosses []float32
	sum        device.Mem // F64, of the squares of the gradients
	squared    device.Mem // the same, for Squares: see there
	sentSum    [1]float64
	foundSum   [1]float64

	foundSquares [2]float64
	measured     bool         // the batch's gradients have been added to it
	step         uint64       // of the last micro-batch, for messages
	ready        device.Event // after the last pass or step
}

// staged is device memory for the stage's boundaries, when the device's memory is not the host's, and for the logits of evaluations.
type staged struct{ input, output, targets device.Mem }

var _ Stage = (*Computed)(nil)

// plan is the stage that New makes, before it has memory.
func (c Config) plan() (*Computed, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	s := &Computed{
		config: c, dev: c.Device, host: c.Device.Host(), buffers: Buffers{Host: device.HostAllocatorOf(c.Device)}, handed: c.HandedInputs > 0, first: c.first(), last: c.last(), layers: c.layers(), passes: c.passes(), frozen: &Frozen{},
	}
	var length int
	s.tensors, length = place(s.layers, false)
	s.shape = s.passes.shape(c, length)
	s.shape.InFlightBytes = s.inFlight() * device.F32.Bytes()
	for _, t := range s.tensors {
		s.shape.ParameterNames = append(s.shape.ParameterNames, t.Name)
	}
	return s, nil
}

// New allocates a stage and gives its parameters their initial values. The error of a full device says what did not fit.
func New(config Config) (*Computed, error) {
	c, err := config.plan()
	if err != nil {
		return nil, err
	}
	if err := c.checkOperations(); err != nil {
		return nil, err
	}
	for _, step := range []func() error{c.allocateFrozen, c.allocate, func() error { return c.prepare(c.passes.ops()) }, c.initialise} {
		if err := step(); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	c.writeBetween()
	return c, c.dev.Synchronize()
}

// allocate makes the memory.
func (c *Computed) allocate() error {
	for _, part := range []func() error{c.allocateVectors, c.allocateCopies, c.allocateVersions, c.allocatePasses, c.allocateBoundaries} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// allocateVectors makes the flat vectors.
func (c *Computed) allocateVectors() (err error) {
	c.between.memory.External, c.evaluated = make([]device.Mem, c.bound(roles, 1)), make([]device.Mem, len(c.tensors))
	if c.parameters, err = c.newVector(parameter, &c.price.Parameters, "parameters"); err != nil {
		return err
	}
	if !c.config.ForwardOnly {
		if c.gradients, err = c.newVector(gradient, &c.price.Gradients, "gradients"); err != nil {
			return err
		}
		sums, err := c.alloc(&c.price.Activations, "sums of squared gradients", device.F64, 3)
		if err != nil {
			return err
		}
		c.sum, c.squared = sums.Slice(0, 1), sums.Slice(1, 2)
	}
	for i := range c.shape.StateVectors {
		v, err := c.newVector(firstState+role(i), &c.price.State, "optimizer state")
		if err != nil {
			return err
		}
		c.state = append(c.state, v)
	}
	if c.config.Predicts {
		if c.predicted.weights, err = c.newVector(predicted, &c.price.Parameters, "predicted weights"); err != nil {
			return err
		}
	}
	switch {
	case c.iterates():
		c.reads = secondState
	case c.config.Predicts:
		c.reads = predicted
	}
	copy(c.role(weight), c.role(c.reads))
	return nil
}

// newVector is a flat vector of the stage, whose tensors are bound in a role.
func (c *Computed) newVector(r role, price *int64, what string) (flat.Vector, error) {
	m, err := c.allocVector(price, what)
	if err != nil {
		return nil, err
	}
	c.bindVector(r, m)
	return device.NewVector(c.dev, m), nil
}

// allocateBoundaries makes the memory of losses, and of boundaries that cannot be wrapped.
func (c *Computed) allocateBoundaries() error {
	targets, in, out := c.shape.LabelBytes/device.I32.Bytes(), c.passes.in, c.passes.out
	for _, b := range []struct {
		needed bool
		to     *device.Mem
		what   string
		t      device.Type
		n      int
	}{
		{c.last, &c.losses, "losses", device.F32, targets},
		{c.last, &c.lossSum, "losses", device.F32, targets},
		{c.config.stagesOutput(), &c.staged.output, "the output boundary", device.F32, layer.Words(out)},
		{!c.host, &c.staged.input, "the input boundary", device.F32, layer.Words(in)},
		{!c.host && c.last, &c.staged.targets, "targets", device.I32, targets},
	} {
		var err error
		if !b.needed {
			continue
		}
		if *b.to, err = c.alloc(&c.price.Boundaries, b.what, b.t, b.n); err != nil {
			return err
		}
	}
	c.staged.input, c.staged.output = layer.View(c.staged.input, in), layer.View(c.staged.output, out)
	c.noLoss, c.hostLosses = device.Zero{X: c.lossSum}, make([]float32, targets)
	return c.allocateBuffers()
}

// allocateBuffers makes the boundaries in device memory.
func (c *Computed) allocateBuffers() error {
	b, in, out := &c.buffers, c.shape.InputBytes, c.shape.OutputBytes
	for _, all := range []struct {
		to       *[]device.Mem
		what     string
		n, bytes int
	}{
		{&b.Outputs, "an output for the stage after", c.config.HandedOutputs, out},
		{&b.Gradients, "a gradient for the stage before", c.config.HandedInputs, in}, // where something before it trains
		{&b.LandedInputs, "an input from another device", c.config.LandedInputs, in},
		{&b.LandedGradients, "a gradient from another device", c.config.LandedGradients, out},
	} {
		for i := 0; i < all.n && (all.to != &b.Gradients || c.hasInputGradient()); i++ {
			m, err := c.alloc(&c.price.Boundaries, all.what, device.F32, floats(all.bytes))
			if err != nil {
				return err
			}
			*all.to = append(*all.to, m)
		}
	}
	return nil
}

// Buffers implements Stage.
func (c *Computed) Buffers() Buffers { return c.buffers }

// findTies sorts the tied parameters into those whose other copy lies on this stage and those whose other copy does not.
func (c *Computed) findTies() {
	index := map[string]int{}
	for i, t := range c.tensors {
		index[t.Name] = i
	}
	for _, p := range c.config.Model.Params() {
		if p.TiedTo == "" {
			continue
		}
		original, hasOriginal := index[p.TiedTo]
		copied, hasCopy := index[p.Name]
		switch {
		case hasOriginal && hasCopy:
			c.pairs = append(c.pairs, [2]int{original, copied})
		case hasOriginal:
			c.ties = append(c.ties, Tie{Name: p.TiedTo, Gradient: device.NewVector(c.dev, c.role(gradient)[original])})
		case hasCopy:
			c.ties = append(c.ties, Tie{Name: p.TiedTo, Gradient: device.NewVector(c.dev, c.role(gradient)[copied])})
		}
	}
}

// Shape implements Stage.
func (c *Computed) Shape() Shape { return c.shape }

// Parameters implements Stage.
func (c *Computed) Parameters() flat.Vector { return c.parameters }

// Gradients implements Stage; nil when the stage is ForwardOnly.
func (c *Computed) Gradients() flat.Vector { return c.gradients }

// State implements Stage: the momentum of sgd; the first and the second moment of adam and adamw; see StateVectors for asgd.
func (c *Computed) State() []flat.Vector { return c.state }

// Ties implements Stage. A tie whose two copies lie on this stage is not listed: the stage sums their gradients itself.
func (c *Computed) Ties() []Tie { return c.ties }

// NewVector implements Stage.
func (c *Computed) NewVector() (flat.Vector, error) {
	m, err := c.allocVector(new(int64), "a vector of parameters")
	if err != nil {
		return nil, err
	}
	return device.NewVector(c.dev, m), nil
}

// Close implements Stage. The device stays open.
func (c *Computed) Close() error {
	err := c.dev.Synchronize()
	for _, m := range c.owned {
		c.dev.Free(m)
	}
	c.owned = nil
	if err != nil {
		return fmt.Errorf("%s: close: %w", c.config.what(), err)
	}
	return nil
}
