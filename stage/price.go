package stage

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// Bytes is the device memory that New takes for one stage of one pipeline, by what it is for.
type Bytes struct {
	Vector      int64 // one flat vector of the stage, as NewVector makes them
	Parameters  int64 // the parameters, with the copies that products read and older versions
	Gradients   int64
	State       int64 // of the optimizer
	Activations int64 // slots, weight slots and the work space of passes
	Boundaries  int64 // losses, and copies of the boundaries where the device does not see the host's memory
}

// Total is the sum of the parts; Vector is not one.
func (b Bytes) Total() int64 {
	return b.Parameters + b.Gradients + b.State + b.Activations + b.Boundaries
}

// Bytes prices the stage that New would make, without making it. It is exact.
func (c Config) Bytes() (Bytes, error) {
	if err := c.Validate(); err != nil {
		return Bytes{}, err
	}
	c = c.withDefaults()
	tensors, bounds, length := place(c.layers())
	w := measure(c)
	s := Computed{config: c, layers: c.layers(), widths: w, last: c.last(), tensors: tensors}
	words := func(n int) int64 { return int64(max(n, 1) * device.F32.Bytes()) }
	b := Bytes{Vector: words(length), Parameters: words(length) + c.copyBytes(tensors, bounds) + int64(s.stashBytes())}
	evaluation := evaluationWords(w)
	b.Activations = words(evaluation)
	if !c.ForwardOnly {
		b.Gradients = words(length)
		b.State = int64(c.Optimizer.StateVectors()) * words(length)
		b.Activations += int64(c.Slots)*words(w.inFlight(c)) + words(s.wholeWords()) + int64(c.WeightSlots)*words(s.weightSlotWords())
	}
	if c.last() {
		b.Boundaries = 2 * words(c.Model.Loss.Targets(c.size()))
	}
	if !c.Device.Host() {
		b.Boundaries += words(w.in[0]) + words(w.out[len(w.out)-1])
		if c.last() {
			b.Boundaries += words(c.Model.Loss.Targets(c.size()))
		}
	}
	return b, nil
}

// copyBytes is what allocateCopies takes.
func (c Config) copyBytes(tensors []tensor, bounds []int) int64 {
	if c.Compute != device.BF16 {
		return 0
	}
	total, widest := 0, 0
	for i := range len(bounds) - 1 {
		n := 0
		for _, t := range tensors[bounds[i]:bounds[i+1]] {
			if t.param.Product {
				n += layer.Padded(t.param.Len())
			}
		}
		total, widest = total+n, max(widest, n)
	}
	return int64((total + widest) * device.BF16.Bytes())
}

// evaluationWords is the length of a forward pass's memory that keeps nothing.
func evaluationWords(w widths) int {
	saved, pair := 0, [2]int{}
	for i := range w.out {
		saved = max(saved, w.saved[i])
		pair[i%2] = max(pair[i%2], w.out[i])
	}
	return layer.Padded(saved) + layer.Padded(pair[0]) + layer.Padded(pair[1])
}

// wholeWords is the length of the memory of whole backward passes.
func (c *Computed) wholeWords() int {
	kept, pair := 0, [2]int{}
	for i := range c.widths.out {
		kept = max(kept, c.widths.kept[i])
		if i < len(c.widths.out)-1 {
			pair[i%2] = max(pair[i%2], c.widths.out[i])
		}
	}
	return layer.Padded(kept) + layer.Padded(pair[0]) + layer.Padded(pair[1]) + c.againWords(false)
}

// weightSlotWords is the length of a weight slot.
func (c *Computed) weightSlotWords() int {
	n := c.againWords(true)
	for i := range c.widths.out {
		n += layer.Padded(c.widths.kept[i])
		if !c.logits(i) {
			n += layer.Padded(c.widths.out[i])
		}
	}
	return n
}
