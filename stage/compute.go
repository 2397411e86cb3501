package stage

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// copies are the BF16 copies of parameters that products read where they compute in BF16; the parameters themselves stay F32.
// A flat vector counts its writes, so a pass knows when the copies are out of date and makes them again only then. A step of the stage,
// which does not write through the vector, makes them itself.
type copies struct {
	of     flat.Vector // what they are copies of, if it has been written `writes` times; nil: nothing
	writes uint64
}

// copied reports whether passes read a copy of t.
func (c *Computed) copied(t *tensor) bool { return c.config.narrow(t.param) }

func (c *Computed) allocateCopies() error {
	copies, err := c.store("copies of the parameters", device.BF16)
	for i, m := range copies {
		if !m.Absent() {
			c.role(weight)[i] = m
		}
	}
	return err
}

// store is memory of the stage for tensors that passes read in these types.
func (c *Computed) store(what string, types ...device.Type) ([]device.Mem, error) {
	return c.config.store(c.tensors, func(t device.Type, n int) (device.Mem, error) { return c.alloc(&c.price.Parameters, what, t, n) }, types...)
}

// store gives tensors that passes read in these types memory, of one allocation a type.
func (c Config) store(tensors []tensor, alloc func(t device.Type, n int) (device.Mem, error), types ...device.Type) ([]device.Mem, error) {
	out := make([]device.Mem, len(tensors))
	for _, read := range types {
		var of []int
		n := 0
		for i, t := range tensors {
			if c.narrow(t.param) == (read == device.BF16) {
				of, n = append(of, i), n+layer.Padded(t.param.Len())
			}
		}
		if n == 0 {
			continue
		}
		m, err := alloc(read, n)
		if err != nil {
			return nil, err
		}
		cut := cutter{mem: m}
		for _, i := range of {
			out[i] = cut.take(tensors[i].param.Len())
		}
	}
	return out, nil
}

// refresh makes the copies those of what a batch computes with.
func (c *Computed) refresh() {
	of := c.parameters
	switch {
	case c.iterates():
		of = c.state[1]
	case c.config.Predicts:
		of = c.predicted.weights
	}
	c.copy(of, c.role(c.reads))
}

// copy makes the copies those of the tensors of a vector, unless they are.
func (c *Computed) copy(v flat.Vector, tensors []device.Mem) {
	x, writes := &c.copies, device.Writes(v)
	if x.of == v && x.writes == writes {
		return
	}
	copy(c.role(source), tensors)
	c.run(c.between.copies, device.Args{})
	x.of, x.writes = v, writes
}

// checkTypes reports the first two neighbouring layers of which one writes a type that the other does not read.
func (c Config) checkTypes() error {
	layers := c.layers()
	for i := 1; i < len(layers); i++ {
		_, out := layer.Ports(layers[i-1], c.size())
		in, _ := layer.Ports(layers[i], c.size())
		for j := range min(len(in), len(out)) {
			if in[j].Type != out[j].Type {
				return fmt.Errorf("layer %s gives %s in %v and layer %s takes it in %v: the model does not compute in %v",
					layer.Name(layers[i-1]), out[j].Name, out[j].Type, layer.Name(layers[i]), in[j].Type, c.Compute)
			}
		}
	}
	return nil
}
