package stage

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
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
	p := &c.passes
	op, part := c.missing(p.output.Forward, p.losses.Forward, p.training.Forward, p.training.Whole), "the loss"
	if op != nil {
		for _, l := range c.layers {
			run := layer.Run{Layers: []layer.Layer{l}, Size: c.config.size()}
			training := run.Training()
			if own := c.missing(training.Forward, training.Whole, run.Evaluation().Forward); own != nil {
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
		op, part = c.missing(updates.between.programs()...), "the optimizer"
	}
	if op == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", c.config.what(), &MissingError{Part: part, Operation: device.NameOf(op), Device: c.dev.Name()})
}

// missing is the first operation of programs, of which some may be nil, that the device lacks; nil where it has all.
func (c *Computed) missing(programs ...*program.Program) device.Op {
	for _, p := range programs {
		if p == nil {
			continue
		}
		for _, op := range p.Ops() {
			if !c.dev.Has(op) {
				return op
			}
		}
	}
	return nil
}
