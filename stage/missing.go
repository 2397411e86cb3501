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
	missing := c.missing(p.output, p.losses, p.training)
	if missing == nil {
		return c.checkUpdates()
	}
	part := "the loss"
	for _, l := range c.layers {
		run := layer.Run{Layers: []layer.Layer{l}, Size: c.config.size()}
		if own := c.missing(run.Training(), run.Evaluation()); own != nil {
			part, missing = "layer "+l.Name(), own
			break
		}
	}
	return c.lacks(part, missing)
}

// checkUpdates checks what runs between passes.
func (c *Computed) checkUpdates() error {
	s := *c
	s.pretends = true
	if err := s.allocate(); err != nil {
		return err
	}
	for _, p := range s.between.programs() {
		if op := c.firstMissing(p); op != nil {
			return c.lacks("the optimizer", op)
		}
	}
	return nil
}

// missing is the first operation of programs that the device lacks; nil where it has all.
func (c *Computed) missing(all ...program.Passes) device.Op {
	for _, passes := range all {
		for _, p := range []*program.Program{passes.Forward, passes.Whole} {
			if p != nil {
				if op := c.firstMissing(p); op != nil {
					return op
				}
			}
		}
	}
	return nil
}

func (c *Computed) firstMissing(p *program.Program) device.Op {
	for _, op := range p.Ops() {
		if !c.dev.Has(op) {
			return op
		}
	}
	return nil
}

func (c *Computed) lacks(part string, op device.Op) error {
	return fmt.Errorf("%s: %w", c.config.what(), &MissingError{Part: part, Operation: device.NameOf(op), Device: c.dev.Name()})
}
