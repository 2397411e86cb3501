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
	// Padding is what these take in addition in the host's memory, where allocations end on whole pages (device.HostPages).
	// It is not part of Total, which is what the stage allocates on the device.
	Padding int64
}

// Total is what the stage allocates on its device: all but Vector and Padding.
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
	b := Bytes{Vector: words(length), Parameters: words(length) + int64(s.stashBytes())}
	taken := func(bytes int64, times int) int64 {
		b.Padding += int64(times) * (device.HostPages(bytes) - bytes)
		return int64(times) * bytes
	}
	taken(b.Vector, 1) // the parameters
	whole, widest := c.copyBytes(tensors, bounds)
	b.Parameters += taken(whole, 1) + taken(widest, 1)
	taken(int64(s.stashBytes())/int64(max(c.Versions-1, 1)), c.Versions-1)
	b.Activations = taken(words(evaluationWords(w)), 1)
	if !c.ForwardOnly {
		b.Gradients = taken(words(length), 1)
		b.State = taken(words(length), c.Optimizer.StateVectors())
		b.Activations += taken(words(w.inFlight(c)), c.Slots) + taken(words(s.wholeWords()), 1) + taken(words(s.weightSlotWords()), c.WeightSlots)
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

// copyBytes is what allocateCopies takes: for all layers, and for the widest.
func (c Config) copyBytes(tensors []tensor, bounds []int) (whole, scratch int64) {
	if c.Compute != device.BF16 {
		return 0, 0
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
	return int64(total * device.BF16.Bytes()), int64(widest * device.BF16.Bytes())
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
