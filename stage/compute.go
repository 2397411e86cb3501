package stage

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// copies are the BF16 copies of parameters that products read where they compute in BF16; the parameters themselves stay F32.
// The flat vector of the parameters counts its writes, so a pass knows when the copies are out of date and makes them again only
// then. A step of the stage, which does not write through that vector, makes them itself.
type copies struct {
	whole  device.Mem // BF16: of all tensors that are copied, absent where none is
	made   bool       // the copies are current, if the parameters have been written `writes` times
	writes uint64
}

// copied reports whether passes read a copy of t.
func (c *Computed) copied(t *tensor) bool { return c.config.narrow(t.param) }

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
	if c.copies.whole, err = c.alloc("copies of the parameters", device.BF16, total); err != nil {
		return err
	}
	cut := cutter{mem: c.copies.whole}
	for i := range c.tensors {
		if t := &c.tensors[i]; c.copied(t) {
			c.weights[i] = cut.take(t.param.Len())
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
	c.run(c.between.copies, device.Args{})
	x.made, x.writes = true, writes
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
