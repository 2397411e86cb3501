package stage

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// Frozen holds the parameters of a stage that are not trained (layer.Param.Frozen), as its passes read them: in BF16 where only products
// read them that compute in it. They are the same in all pipelines, so the stages of a device share them.
type Frozen struct {
	dev     device.Device
	tensors []tensor
	values  []device.Mem // of each tensor
	owned   []device.Mem
}

// NewFrozen allocates the frozen parameters of the stages that a config describes. Write gives them their values.
func NewFrozen(c Config) (*Frozen, error) {
	f := &Frozen{dev: c.Device}
	f.tensors, _ = place(c.withDefaults().layers(), true)
	var err error
	f.values, err = c.store(f.tensors, func(t device.Type, n int) (device.Mem, error) {
		m, err := c.Device.Alloc(t, n)
		f.owned = append(f.owned, m)
		return m, err
	}, device.F32, device.BF16)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: allocate frozen parameters: %w", c.what(), err), f.Close())
	}
	return f, nil
}

// narrow reports whether passes read a parameter in BF16.
func (c Config) narrow(p layer.Param) bool { return c.Compute == device.BF16 && p.Product }

// FrozenValues is a flat vector with the frozen parameters (see Layout): what a file has of them, as in Load, or with nil what they start
// with.
func (c Config) FrozenValues(lookup Lookup) ([]float32, error) {
	tensors, length := place(c.withDefaults().layers(), true)
	all := make([]float32, length)
	for _, t := range tensors {
		values, err := c.value(t.param, lookup)
		if err != nil {
			return nil, err
		}
		copy(all[t.Offset:], values)
	}
	return all, nil
}

// Write sets the values, a flat vector as FrozenValues gives it.
func (f *Frozen) Write(values []float32) error {
	for i, t := range f.tensors {
		own, to := values[t.Offset:][:t.param.Len()], f.values[i]
		if to.Type() == device.F32 {
			f.dev.Upload(to, device.FloatBytes(own))
			continue
		}
		rounded := make([]byte, 0, to.Bytes())
		for _, v := range own {
			rounded = binary.NativeEndian.AppendUint16(rounded, flat.RoundBF16(v))
		}
		f.dev.Upload(to, rounded)
	}
	return f.dev.Synchronize()
}

// load writes what a file has.
func (f *Frozen) load(c Config, lookup Lookup) error {
	if len(f.tensors) == 0 {
		return nil
	}
	values, err := c.FrozenValues(lookup)
	if err != nil {
		return err
	}
	return f.Write(values)
}

// Close frees the memory. No stage may use it any more.
func (f *Frozen) Close() error {
	for _, m := range f.owned {
		f.dev.Free(m)
	}
	f.owned = nil
	return nil
}

// allocateFrozen makes the frozen parameters where nobody gave them.
func (c *Computed) allocateFrozen() (err error) {
	if c.frozen = c.config.Frozen; c.frozen != nil {
		return nil
	}
	if c.frozen, err = NewFrozen(c.config); err != nil {
		return err
	}
	c.owned = append(c.owned, c.frozen.owned...)
	if !device.KeepsValues(c.dev) {
		return nil
	}
	return c.frozen.load(c.config, nil)
}
