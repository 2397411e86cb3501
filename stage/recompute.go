package stage

import (
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// Recompute says what a stage does not keep from a micro-batch's forward to its backward, and computes again instead
// (Chen et al. 2016, "Training deep nets with sublinear memory cost", section 3; per stage as Huang et al. 2019, section
// 2.3). The bits are those of a stage that keeps everything: what is random is drawn from keys (layer.Pass.Key), and
// running statistics are counted once (layer.Pass.Recomputing).
type Recompute string

// The kinds of recomputation. Block and full cost one more forward each; they differ in when memory is needed.
const (
	// RecomputeNone keeps everything. It is what the empty Recompute means.
	RecomputeNone Recompute = "none"
	// RecomputeBlock keeps the input of every layer, the unit of split, and runs the layer's forward again just before its
	// backward. All passes share the memory of the largest layer.
	RecomputeBlock Recompute = "block"
	// RecomputeFull keeps the input of the stage alone, and runs the whole stage's forward again just before the backward.
	// All passes share the memory that one micro-batch holds without recomputation: it pays when several are in flight.
	RecomputeFull Recompute = "full"
)

var recomputes = []string{string(RecomputeNone), string(RecomputeBlock), string(RecomputeFull)}

// Recomputes lists what Recompute can be.
func Recomputes() []string { return slices.Clone(recomputes) }

func (r Recompute) validate() error {
	if !slices.Contains(recomputes, string(r)) {
		return fmt.Errorf("recompute is %q; it is one of %s", string(r), strings.Join(recomputes, ", "))
	}
	return nil
}

// any reports whether some forward runs again.
func (r Recompute) any() bool { return r != RecomputeNone }

// keepsOutput reports whether a slot holds the output of layer i of n. The last one leaves the stage or, on the last stage,
// is what the loss is computed from and what its gradient takes the place of.
func (r Recompute) keepsOutput(i, n int, last bool) bool {
	switch {
	case r == RecomputeFull:
		return false
	case i < n-1:
		return true
	}
	return last && r == RecomputeNone
}

// again is a backward pass's own memory for what it computes again, by layer; absent where it uses the slot or the scratch of
// evaluations.
type again struct{ out, saved []device.Mem }

// ownAgain reports whether a backward pass needs memory of its own for the output of layer i, and for what all layers save.
// outlast says that a later call runs its weight half. A whole backward with RecomputeBlock needs none: it uses the scratch of
// evaluations, which nothing else uses during a backward.
func (c *Computed) ownAgain(i int, outlast bool) (out, saved bool) {
	full, last := c.config.Recompute == RecomputeFull, len(c.layers)-1
	return full && i < last || outlast && c.logits(i), full || outlast
}

// againWords is the length of that memory.
func (c *Computed) againWords(outlast bool) int {
	if !c.config.Recompute.any() {
		return 0
	}
	n, w := 0, c.widths
	for i := range w.out {
		out, saved := c.ownAgain(i, outlast)
		if out {
			n += layer.Padded(w.out[i])
		}
		if saved {
			n += layer.Padded(w.saved[i])
		}
	}
	return n
}

// cutAgain lays that memory out.
func (c *Computed) cutAgain(cut *cutter, outlast bool) again {
	if !c.config.Recompute.any() {
		return again{}
	}
	w := c.widths
	n := len(w.out)
	a := again{out: make([]device.Mem, n), saved: slices.Clone(c.evaluation.saved)}
	a.out[n-1] = c.evaluation.out[n-1]
	for i := range n {
		out, saved := c.ownAgain(i, outlast)
		if out {
			a.out[i] = layer.View(cut.take(w.out[i]), w.ports[i])
		}
		if saved {
			a.saved[i] = cut.take(w.saved[i])
		}
	}
	return a
}

// output is where a backward pass finds the output of layer i.
func (a again) output(s *slot, i int) device.Mem {
	if a.out != nil && !a.out[i].Absent() {
		return a.out[i]
	}
	return s.out[i]
}

// savedOf is where a backward pass finds what layer i has saved.
func (a again) savedOf(s *slot, i int) device.Mem {
	if a.saved != nil {
		return a.saved[i]
	}
	return s.saved[i]
}

// repeatStage runs the forward of all layers again, before a backward with RecomputeFull.
func (c *Computed) repeatStage(s *slot, a again) {
	if c.config.Recompute == RecomputeFull {
		for i := range c.layers {
			c.repeat(s, a, i)
		}
	}
}

// repeatLayer runs the forward of layer i again, before its backward with RecomputeBlock.
func (c *Computed) repeatLayer(s *slot, a again, i int) {
	if c.config.Recompute == RecomputeBlock {
		c.repeat(s, a, i)
	}
}

// repeat runs the forward of layer i again, and the gradient of the loss after the model's last.
func (c *Computed) repeat(s *slot, a again, i int) {
	p := c.pass(s.micro)
	p.Recomputing = true
	p.Params = s.weights[c.bounds[i]:c.bounds[i+1]]
	p.In, p.Out, p.Saved = s.input, a.output(s, i), a.savedOf(s, i)
	if i > 0 {
		p.In = a.output(s, i-1)
	}
	c.layers[i].Forward(p)
	if c.logits(i) {
		c.config.Model.Loss.Compute(c.dev, c.losses, p.Out, p.Out, s.targets, s.scale)
	}
}
