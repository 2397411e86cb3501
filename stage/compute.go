package stage

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// copies are the BF16 copies of parameters that products read where they compute in BF16; the parameters themselves stay F32.
// The flat vector of the parameters counts its writes, so a pass knows when the copies are out of date and makes them again only
// then. A step of the stage, which does not write through that vector, clears made.
type copies struct {
	whole  device.Mem   // BF16: of all tensors that are copied, absent where none is
	own    []device.Mem // of each tensor; absent where passes read the tensor itself
	made   bool         // the copies are current, if the parameters have been written `writes` times
	writes uint64
}

// copied reports whether passes read a copy of t.
func (c *Computed) copied(t *tensor) bool { return c.config.Compute == device.BF16 && t.param.Product }

func (c *Computed) allocateCopies() (err error) {
	total := 0
	for i := range c.tensors {
		if t := &c.tensors[i]; c.copied(t) {
			total += layer.Padded(t.param.Len())
		}
	}
	if total == 0 {
		return nil
	}
	x := &c.copies
	if x.whole, err = c.alloc("copies of the parameters", device.BF16, total); err != nil {
		return err
	}
	x.own = make([]device.Mem, len(c.tensors))
	cut := cutter{mem: x.whole}
	for i := range c.tensors {
		if t := &c.tensors[i]; c.copied(t) {
			x.own[i] = cut.take(t.param.Len())
			c.weights[i] = x.own[i]
		}
	}
	return nil
}

// refresh makes the copies anew if the parameters have changed since they were made.
func (c *Computed) refresh() {
	x, writes := &c.copies, device.Writes(c.parameters)
	if x.whole.Absent() || x.made && x.writes == writes {
		return
	}
	for i := range c.tensors {
		if !x.own[i].Absent() {
			c.dev.Do(&device.Copy{Y: x.own[i], X: c.source(&c.tensors[i])})
		}
	}
	x.made, x.writes = true, writes
}

// source is the F32 memory that the passes of a batch compute with, or copy to BF16: the parameter, or with asgd the iterate.
func (c *Computed) source(t *tensor) device.Mem {
	if c.config.Optimizer.Name == "asgd" && !c.config.ForwardOnly {
		return t.s[1]
	}
	return t.p
}

// checkTypes reports the first two neighbouring layers of which one writes a type that the other does not read.
func (c Config) checkTypes() error {
	layers := c.layers()
	for i := 1; i < len(layers); i++ {
		_, out := layers[i-1].Ports(c.size())
		in, _ := layers[i].Ports(c.size())
		for j := range min(len(in), len(out)) {
			if in[j].Type != out[j].Type {
				return fmt.Errorf("%s: layer %s gives %s in %v and layer %s takes it in %v: the model does not compute in %v",
					c.what(), layers[i-1].Name(), out[j].Name, out[j].Type, layers[i].Name(), in[j].Type, c.Compute)
			}
		}
	}
	return nil
}
