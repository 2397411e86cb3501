package stage

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// finals tell which gradients are final after an operation of the last backward of a batch, and after ties are added.
type finals struct{ whole, weight, tied func(operation int) }

// OnFinal has f called once a batch for each tensor, as soon as its gradient is final: ready then says when it can be read. That is within
// the last backward of the batch (Micro.Last), from the layers at the end to those at the beginning, so that gradients can be exchanged
// beside it. Tied gradients, which the caller may have to add first, and running statistics follow when SquaredNorm or Step is called.
// f is called on the stage's executor.
func (c *Computed) OnFinal(f func(t Tensor, ready device.Event)) {
	tied := map[string]bool{}
	for _, p := range c.config.Model.Params() {
		if p.TiedTo != "" {
			tied[p.Name], tied[p.TiedTo] = true, true
		}
	}
	tell := func(late bool, after func(bound int) int) func(int) {
		at := map[int][]Tensor{}
		for _, t := range c.tensors {
			if late == (tied[t.Name] || t.param.Running > 0) {
				i := after(layer.Parameters + len(c.tensors) + len(c.frozen.tensors) + t.index)
				at[i] = append(at[i], t.Tensor)
			}
		}
		return func(operation int) {
			if tensors := at[operation]; tensors != nil {
				ready := c.dev.Record()
				for _, t := range tensors {
					f(t, ready)
				}
			}
		}
	}
	p := &c.passes.training
	c.final = finals{
		tell(false, p.Whole.FinalAfter), tell(false, p.Weight.FinalAfter), // of the weight half: -1 when the input half writes it
		tell(true, func(int) int { return 0 }),
	}
}
