package stage

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
)

// passes are the programs of a stage.
type passes struct {
	training program.Passes // none when ForwardOnly
	// evaluation is with the weights that training reads, other with parameters in F32.
	evaluation, other evaluation
	in, out           []layer.Port
	arena             int // bytes of one pass at a time
}

// evaluation is a forward that nothing follows: to the output, or on the last stage to the losses.
type evaluation struct{ output, losses program.Passes }

func (e *evaluation) arena() int { return max(e.output.Arena, e.losses.Arena) }

func evaluationOf(r layer.Run, exact bool) (e evaluation) {
	e.output = r.Evaluation(exact)
	if r.Loss != nil {
		e.losses = r.Scoring(exact)
	}
	return e
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
	p := passes{evaluation: evaluationOf(r, false)}
	p.other = p.evaluation
	if c.Compute != device.F32 {
		p.other = evaluationOf(r, true)
	}
	p.in, p.out = r.Ports()
	if !c.ForwardOnly {
		p.training = r.Training()
	}
	p.arena = max(p.evaluation.arena(), p.other.arena(), p.training.Arena)
	return p
}

// floats is the float32 that so many bytes take, a multiple of 4.
func floats(bytes int) int { return bytes / device.F32.Bytes() }

// inFlight is the float32 of one slot: what a micro-batch keeps between its passes, and its running statistics. A device that cannot read the
// host's memory has a copy of the input and of the targets.
func (p *passes) inFlight(c Config) int {
	n := floats(p.training.Saved) + c.statisticsWords()
	if !c.Device.Host() {
		n += layer.Padded(layer.Words(p.in))
		if c.last() {
			n += layer.Padded(c.Model.Loss.Targets(c.size()))
		}
	}
	return n
}

// slot is the memory that a micro-batch holds between its forward and its backward.
type slot struct {
	micro  Micro
	state  slotState
	weight *weightSlot // between Input and Weight
	// weights are what the passes read of each tensor, a version of them.
	weights []device.Mem
	saved   device.Mem
	// input and targets wrap the caller's buffers when the device shares the host's memory.
	input, targets device.Mem
	scale          float32 // of the loss
	// grads are the gradients of each tensor with the slot's own memory for running statistics; nil where statistics are counted at once.
	grads []device.Mem
}

type slotState uint8

const (
	free       slotState = iota
	forwarded            // waits for Whole or Input
	inputReady           // waits for Weight
)

// weightSlot is what an input half leaves for its weight half.
type weightSlot struct {
	busy bool
	kept device.Mem
}

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

// alloc is memory of the stage, freed by Close.
func (c *Computed) alloc(what string, t device.Type, n int) (device.Mem, error) {
	m, err := c.dev.Alloc(t, max(n, 1))
	if err != nil {
		return device.Mem{}, fmt.Errorf("%s: allocate %s: %w", c.config.what(), what, err)
	}
	c.owned = append(c.owned, m)
	return m, nil
}

// allocVector is memory for a flat vector of the stage.
func (c *Computed) allocVector(what string) (device.Mem, error) {
	m, err := c.alloc(what, device.F32, c.shape.Parameters)
	if err != nil {
		return m, err
	}
	return m.Slice(0, c.shape.Parameters), nil
}

func (c *Computed) newSlot() (slot, error) {
	m, err := c.alloc("a slot for a micro-batch", device.F32, c.passes.inFlight(c.config))
	if err != nil {
		return slot{}, err
	}
	cut := cutter{mem: m}
	s := slot{saved: cut.take(floats(c.passes.training.Saved))}
	c.cutStatistics(&s, &cut)
	if c.host {
		return s, nil
	}
	s.input = layer.View(cut.take(layer.Words(c.passes.in)), c.passes.in)
	if c.last {
		targets := c.config.Model.Loss.Targets(c.config.size())
		s.targets = cut.take(targets).As(device.I32, targets)
	}
	return s, nil
}

// allocatePasses makes the memory that forward and backward passes work on.
func (c *Computed) allocatePasses() (err error) {
	n := len(c.tensors) + len(c.frozen.tensors)
	c.memory.External = make([]device.Mem, layer.Parameters+2*n)
	for i := range c.frozen.tensors {
		t := &c.frozen.tensors[i]
		c.memory.External[layer.Parameters+t.index] = t.p
	}
	if c.memory.Arena, err = c.alloc("passes", device.F32, floats(c.passes.arena)); err != nil || c.config.ForwardOnly {
		return err
	}
	for range c.config.Slots {
		s, err := c.newSlot()
		if err != nil {
			return err
		}
		c.slots = append(c.slots, s)
	}
	for range c.config.WeightSlots {
		kept, err := c.alloc("a weight slot", device.F32, floats(c.passes.training.Kept))
		if err != nil {
			return err
		}
		c.weightSlots = append(c.weightSlots, weightSlot{kept: kept})
	}
	return nil
}

// bind is the memory of a pass of a micro-batch: what it keeps, its weights and its gradients.
func (c *Computed) bind(s *slot) *program.Memory {
	m, n := &c.memory, len(c.tensors)+len(c.frozen.tensors)
	grads := c.grads
	if s.grads != nil {
		grads = s.grads
	}
	m.Saved = s.saved
	m.External[layer.Input], m.External[layer.Targets] = s.input, s.targets
	m.External[layer.Losses], m.External[layer.LossSum] = c.losses, c.lossSum
	for i := range c.tensors {
		at := layer.Parameters + c.tensors[i].index
		m.External[at], m.External[at+n] = s.weights[i], grads[i]
	}
	return m
}
