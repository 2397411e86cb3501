package stage

import (
	"maps"
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
)

// finals are the places where gradients become final.
type finals struct {
	whole, weight []program.Mark // of the last backward of a batch
	tied          func()
}

// OnFinal has f called once a batch for each tensor, as soon as its gradient is final: ready then says when it can be read. That is within
// the last backward of the batch (Micro.Last), from the layers at the end to those at the beginning, so that gradients can be exchanged
// beside it. Tied gradients, which the caller may have to add first, and running statistics follow when SquaredNorm or Step is called.
// f is called on the stage's executor.
func (c *Computed) OnFinal(f func(t Tensor, ready device.Event)) {
	tell := func(tensors []Tensor) func() {
		return func() {
			ready := c.dev.Record()
			for _, t := range tensors {
				f(t, ready)
			}
		}
	}
	tied := map[string]bool{}
	for _, p := range c.config.Model.Params() {
		if p.TiedTo != "" {
			tied[p.Name], tied[p.TiedTo] = true, true
		}
	}
	var late []Tensor
	whole, weight := map[int][]Tensor{}, map[int][]Tensor{}
	for _, t := range c.tensors {
		if tied[t.Name] || t.param.Running > 0 {
			late = append(late, t.Tensor)
			continue
		}
		bound := layer.Parameters + len(c.tensors) + len(c.frozen.tensors) + t.index
		for p, finals := range map[*program.Program]map[int][]Tensor{c.passes.training.Whole: whole, c.passes.training.Weight: weight} {
			at := p.FinalAfter(bound) // of the weight half: -1 when the input half writes it
			finals[at] = append(finals[at], t.Tensor)
		}
	}
	marks := func(finals map[int][]Tensor) (marks []program.Mark) {
		for _, at := range slices.Sorted(maps.Keys(finals)) {
			marks = append(marks, program.Mark{After: at, Reached: tell(finals[at])})
		}
		return marks
	}
	c.final = finals{marks(whole), marks(weight), tell(late)}
}
