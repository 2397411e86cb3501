package stage

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// widths are the words that each layer of a stage needs for one micro-batch.
type widths struct {
	in, out, saved, kept []int
	ports                [][]layer.Port // out of each layer
	input                []layer.Port   // into the stage
	forward, backward    float64        // FLOPs of the stage
}

func measure(c Config) widths {
	var w widths
	s := c.size()
	layers := c.layers()
	for _, l := range layers {
		in, out := l.Ports(s)
		w.in = append(w.in, layer.Words(in))
		w.out = append(w.out, layer.Words(out))
		w.ports = append(w.ports, out)
		w.saved = append(w.saved, l.Saved(s))
		w.kept = append(w.kept, l.Kept(s))
		f, b := l.FLOPs(s)
		w.forward, w.backward = w.forward+f, w.backward+b
	}
	w.input, _ = layers[0].Ports(s)
	return w
}

// output is the ports out of the stage.
func (w widths) output() []layer.Port { return w.ports[len(w.ports)-1] }

// inFlight is the words of one slot: what each layer saves, and its output, unless they are computed again. The last layer's
// output is sent to the next stage and takes no place; on the last stage it is the logits, which the loss overwrites with their
// gradient. A device that cannot read the host's memory has a copy of the input and of the targets.
func (w widths) inFlight(c Config) int {
	n := 0
	for i := range w.out {
		if !c.Recompute.any() {
			n += layer.Padded(w.saved[i])
		}
		if c.Recompute.keepsOutput(i, len(w.out), c.last()) {
			n += layer.Padded(w.out[i])
		}
	}
	n += c.statisticsWords()
	if !c.Device.Host() {
		n += layer.Padded(w.in[0])
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
	weight *gradients // between Input and Weight
	// weights are what the passes read of each tensor, a version of them.
	weights []device.Mem
	// input and targets wrap the caller's buffers when the device shares the host's memory.
	input, targets device.Mem
	scale          float32      // of the loss
	out            []device.Mem // by layer; the evaluation's where it is computed again
	saved          []device.Mem // by layer; likewise
	// grads are the gradients of each tensor with the slot's own memory for running statistics, those of statistics; nil where
	// statistics are counted at once.
	grads      []device.Mem
	statistics []int
}

type slotState uint8

const (
	free       slotState = iota
	forwarded            // waits for Whole or Input
	inputReady           // waits for Weight
)

// gradients is the memory of a backward pass: by layer, the gradient of its output, and what its input half leaves for
// its weight half.
type gradients struct {
	busy       bool
	dout, kept []device.Mem
	again      again
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

func (c *Computed) newSlot() (slot, error) {
	w := c.widths
	n := len(w.out)
	m, err := c.alloc("a slot for a micro-batch", device.F32, w.inFlight(c.config))
	if err != nil {
		return slot{}, err
	}
	cut := cutter{mem: m}
	s := slot{out: slices.Clone(c.evaluation.out), saved: slices.Clone(c.evaluation.saved)}
	for i := range n {
		if !c.config.Recompute.any() {
			s.saved[i] = cut.take(w.saved[i])
		}
		if c.config.Recompute.keepsOutput(i, n, c.last) {
			s.out[i] = layer.View(cut.take(w.out[i]), w.ports[i])
		}
	}
	c.cutStatistics(&s, &cut)
	if c.host {
		return s, nil
	}
	s.input = layer.View(cut.take(w.in[0]), w.input)
	if c.last {
		targets := c.config.Model.Loss.Targets(c.config.size())
		s.targets = cut.take(targets).As(device.I32, targets)
	}
	return s, nil
}

// newWhole is the memory of whole backward passes. Each layer's weight half follows its input half at once, so two gradients of
// boundaries are in use at a time, and all layers share the memory of what an input half keeps for its weight half.
func (c *Computed) newWhole() (gradients, error) {
	w := c.widths
	n := len(w.out)
	kept, pair := 0, [2]int{}
	for i := range n {
		kept = max(kept, w.kept[i])
		if i < n-1 {
			pair[i%2] = max(pair[i%2], w.out[i])
		}
	}
	m, err := c.alloc("backward passes", device.F32,
		layer.Padded(kept)+layer.Padded(pair[0])+layer.Padded(pair[1])+c.againWords(false))
	if err != nil {
		return gradients{}, err
	}
	cut := cutter{mem: m}
	keep := cut.take(kept)
	buffers := [2]device.Mem{cut.take(pair[0]), cut.take(pair[1])}
	g := gradients{dout: make([]device.Mem, n), kept: make([]device.Mem, n), again: c.cutAgain(&cut, false)}
	for i := range n {
		g.kept[i] = keep.Slice(0, w.kept[i])
		if i < n-1 {
			g.dout[i] = layer.View(buffers[i%2].Slice(0, w.out[i]), w.ports[i])
		}
	}
	return g, nil
}

// newWeightSlot is the memory of a backward pass whose weight half runs later: every gradient of a boundary is kept until then. On the
// last stage the gradient of the logits lies in the slot, where the logits were.
func (c *Computed) newWeightSlot() (gradients, error) {
	w := c.widths
	total := c.againWords(true)
	for i := range w.out {
		total += layer.Padded(w.kept[i])
		if !c.logits(i) {
			total += layer.Padded(w.out[i])
		}
	}
	m, err := c.alloc("a weight slot", device.F32, total)
	if err != nil {
		return gradients{}, err
	}
	cut := cutter{mem: m}
	g := gradients{
		dout: make([]device.Mem, len(w.out)), kept: make([]device.Mem, len(w.out)), again: c.cutAgain(&cut, true),
	}
	for i := range w.out {
		g.kept[i] = cut.take(w.kept[i])
		if !c.logits(i) {
			g.dout[i] = layer.View(cut.take(w.out[i]), w.ports[i])
		}
	}
	return g, nil
}

// logits reports whether the output of the stage's layer i is that of the model.
func (c *Computed) logits(i int) bool { return c.last && i == len(c.widths.out)-1 }

// newEvaluation is the memory of a forward pass that keeps nothing: two boundaries alive at a time, and one layer's
// scratch.
func (c *Computed) newEvaluation() (slot, error) {
	w := c.widths
	n := len(w.out)
	saved, pair := 0, [2]int{}
	for i := range n {
		saved = max(saved, w.saved[i])
		pair[i%2] = max(pair[i%2], w.out[i])
	}
	m, err := c.alloc("evaluation", device.F32, layer.Padded(saved)+layer.Padded(pair[0])+layer.Padded(pair[1]))
	if err != nil {
		return slot{}, err
	}
	cut := cutter{mem: m}
	scratch := cut.take(saved)
	buffers := [2]device.Mem{cut.take(pair[0]), cut.take(pair[1])}
	s := slot{out: make([]device.Mem, n), saved: make([]device.Mem, n)}
	for i := range n {
		s.saved[i] = scratch.Slice(0, w.saved[i])
		s.out[i] = layer.View(buffers[i%2].Slice(0, w.out[i]), w.ports[i])
	}
	return s, nil
}
