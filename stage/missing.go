package stage

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// MissingError says that a device lacks an operation that a part of a stage needs.
type MissingError struct {
	Part      string // "layer stem", "the loss" or "the optimizer"
	Operation string // "Convolution"
	Device    string // its name
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s needs the operation %s, which the device %s lacks", e.Part, e.Operation, e.Device)
}

// CheckOperations returns a *MissingError where the device lacks an operation of the stage. It allocates nothing on the device.
func (c Config) CheckOperations() error {
	s, err := c.plan()
	if err != nil {
		return err
	}
	return s.checkOperations()
}

func (c *Computed) checkOperations() error {
	op, part := c.missing(c.passes.ops()), "the loss"
	if op != nil {
		for _, l := range c.layers {
			run := layer.Run{Layers: []layer.Layer{l}, Size: c.config.size()}
			alone := passes{training: run.Training(), output: run.Evaluation()}
			if own := c.missing(alone.ops()); own != nil {
				op, part = own, "layer "+layer.Name(l)
				break
			}
		}
	} else {
		updates := *c
		updates.pretends = true
		if err := updates.allocate(); err != nil {
			return err
		}
		updates.writeBetween()
		op, part = c.missing(ops(updates.between.programs()...)), "the optimizer"
	}
	if op == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", c.config.what(), &MissingError{Part: part, Operation: device.NameOf(op), Device: c.dev.Name()})
}

// missing is the first of operations that the device lacks; nil where it has all.
func (c *Computed) missing(ops []device.Op) device.Op {
	for _, op := range ops {
		if !c.dev.Has(op) {
			return op
		}
	}
	return nil
}
