package stage

import (
	"fmt"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
)

// passes are the programs of a stage.
type passes struct {
	training program.Passes // none when ForwardOnly
	// output and losses are forwards that nothing follows: to the output, and on the last stage to the losses.
	output, losses program.Passes
	in, out        []layer.Port
}

// passes makes the programs.
func (c Config) passes() passes {
	r := layer.Run{
		Layers: c.layers(), Size: c.size(), RepeatLayers: c.Recompute == RecomputeBlock, RepeatAll: c.Recompute == RecomputeFull,
		NoDInput: !slices.ContainsFunc(c.Model.Layers[:c.Range.From], layer.Trains),
	}
	if !c.first() {
		r.In = c.Boundary
	}
	if c.last() {
		r.Loss = &c.Model.Loss
	} else {
		r.Out = c.Boundary
	}
	p := passes{output: r.Evaluation()}
	if r.Loss != nil {
		p.losses = r.Scoring()
	}
	p.in, p.out = r.Ports()
	if !c.ForwardOnly {
		p.training = r.Training()
	}
	return p
}

// ops are the operations of all passes.
func (p *passes) ops() []device.Op {
	t := &p.training
	return ops(p.output.Forward, p.losses.Forward, t.Forward, t.Whole, t.Input, t.Weight)
}

// ops are the operations of programs, of which some may be nil.
func ops(programs ...*program.Program) (all []device.Op) {
	for _, p := range programs {
		if p != nil {
			all = append(all, p.Ops()...)
		}
	}
	return all
}

// prepare has the device make what it takes beside operands, before a pass needs it.
func (c *Computed) prepare(all []device.Op) error {
	for _, planner := range device.PlannersOf(c.dev) {
		if err := planner.Prepare(all); err != nil {
			return fmt.Errorf("%s: %w", c.config.what(), err)
		}
	}
	return nil
}

// floats is the float32 that so many bytes take, a multiple of 4.
func floats(bytes int) int { return bytes / device.F32.Bytes() }

// inFlight is the float32 of one slot.
func (c *Computed) inFlight() int {
	cut := cutter{mem: device.NewSymbol(device.F32, math.MaxInt/8)}
	c.cutSlot(&cut)
	return cut.at
}

// slot is the memory that a micro-batch holds between its forward and its backward.
type slot struct {
	micro Micro
	state slotState
	kept  device.Mem // between Input and Weight
	// weights are what the passes read of each tensor, a version of them.
	weights []device.Mem
	saved   device.Mem
	// input and targets are the caller's buffers where the device can use these.
	input, targets device.Mem
	scale          float32 // of the loss
	begins         bool    // its running statistics follow those of the parameters, not those of the micro-batch before
	// statistics are the slot's own gradients of those tensors that are running statistics; nil where these are counted at once.
	statistics []device.Mem
}

type slotState uint8

const (
	free       slotState = iota
	forwarded            // waits for Whole or Input
	inputReady           // waits for Weight
)

// cutter takes consecutive aligned runs off a memory.
type cutter struct {
	mem device.Mem
	at  int
}

func (c *cutter) take(n int) device.Mem {
	m := c.mem.Slice(c.at, n)
	c.at += layer.Padded(n)
	return m
}

// alloc is memory of the stage, freed by Close. Its price is added.
func (c *Computed) alloc(price *int64, what string, t device.Type, n int) (device.Mem, error) {
	n = max(n, 1)
	bytes := int64(n * t.Bytes())
	*price += bytes
	c.price.Padding += device.HostPages(bytes) - bytes
	if c.pretends {
		return device.NewSymbol(t, n), nil
	}
	m, err := c.dev.Alloc(t, n)
	if err != nil {
		return device.Mem{}, fmt.Errorf("%s: allocate %s: %w", c.config.what(), what, err)
	}
	c.owned = append(c.owned, m)
	return m, nil
}

// allocVector is memory for a flat vector of the stage.
func (c *Computed) allocVector(price *int64, what string) (device.Mem, error) {
	m, err := c.alloc(price, what, device.F32, c.shape.Parameters)
	if err != nil {
		return m, err
	}
	return m.Slice(0, c.shape.Parameters), nil
}

// cutSlot lays a slot out: what a micro-batch keeps between its passes, and its running statistics. A device that cannot read the host's memory
// has a copy of the targets, and of an input that comes from there.
func (c *Computed) cutSlot(cut *cutter) slot {
	s := slot{saved: cut.take(floats(c.passes.training.Saved))}
	c.cutStatistics(&s, cut)
	if c.host {
		return s
	}
	if !c.handed {
		s.input = layer.View(cut.take(layer.Words(c.passes.in)), c.passes.in)
	}
	if c.last {
		targets := c.config.Model.Loss.Targets(c.config.size())
		s.targets = cut.take(targets).As(device.I32, targets)
	}
	return s
}

// allocatePasses makes the memory that forward and backward passes work on.
func (c *Computed) allocatePasses() (err error) {
	n := len(c.tensors) + len(c.frozen.tensors)
	c.memory.External = make([]device.Mem, layer.Parameters+2*n)
	for i, t := range c.frozen.tensors {
		c.memory.External[layer.Parameters+t.index] = c.frozen.values[i]
	}
	p := &c.passes
	arena := max(p.output.Arena, p.losses.Arena, p.training.Arena, c.predictionScratch(), c.tiedScratch())
	if c.memory.Arena, err = c.alloc(&c.price.Activations, "passes", device.F32, floats(arena)); err != nil || c.config.ForwardOnly {
		return err
	}
	for range c.config.Slots {
		m, err := c.alloc(&c.price.Activations, "a slot for a micro-batch", device.F32, c.inFlight())
		if err != nil {
			return err
		}
		c.slots = append(c.slots, c.cutSlot(&cutter{mem: m}))
	}
	for range c.config.WeightSlots {
		kept, err := c.alloc(&c.price.Activations, "a weight slot", device.F32, floats(p.training.Kept))
		if err != nil {
			return err
		}
		c.kept = append(c.kept, kept)
	}
	return nil
}

// bind is the memory of a pass of a micro-batch: what it keeps, its weights and its gradients.
func (c *Computed) bind(s *slot) *program.Memory {
	m, n := &c.memory, len(c.tensors)+len(c.frozen.tensors)
	m.Saved, m.Kept = s.saved, s.kept
	m.External[layer.Input], m.External[layer.Targets] = s.input, s.targets
	m.External[layer.Losses], m.External[layer.LossSum] = c.losses, c.lossSum
	for i := range c.tensors {
		at := layer.Parameters + c.tensors[i].index
		m.External[at], m.External[at+n] = s.weights[i], c.role(gradient)[i]
		if s.statistics != nil && !s.statistics[i].Absent() {
			m.External[at+n] = s.statistics[i]
		}
	}
	return m
}
