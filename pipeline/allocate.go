package pipeline

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// allocate makes the shard's vectors on the stages' device and sets the center. On the executor.
func (s *shard) allocate() error {
	lead := s.lead()
	if s.needs.Identity {
		s.vectors.Center = lead.Parameters()
	} else {
		s.vectors.State = make([]flat.Vector, s.needs.State)
		all := []*flat.Vector{&s.vectors.Center, &s.vectors.Sum}
		for i := range s.vectors.State {
			all = append(all, &s.vectors.State[i])
		}
		if s.needs.Moved {
			all = append(all, &s.moved)
		}
		if err := s.newVectors(all...); err != nil {
			return err
		}
		if !s.needs.Gradients {
			s.vectors.Center.Copy(lead.Parameters())
		}
	}
	if err := s.allocateMessages(); err != nil {
		return err
	}
	if s.eval != nil {
		return s.newVectors(&s.eval.vector)
	}
	return nil
}

// allocateMessages makes those of the pipelines here, and the slices and segments of everything; a gradient that may be the message itself needs none.
func (s *shard) allocateMessages() error {
	s.messages = make([][]flat.Vector, len(s.stages))
	for p, of := range s.stages {
		if of == nil || s.needs.Identity || s.needs.Borrows() {
			continue
		}
		s.messages[p] = make([]flat.Vector, s.needs.Buffers())
		for i := range s.messages[p] {
			if err := s.newVectors(&s.messages[p][i]); err != nil {
				return err
			}
		}
	}
	for _, of := range s.slices {
		of.share(s, of.needs.Borrows())
	}
	if s.config.feedback() {
		s.residuals = make([]flat.Host, len(s.stages))
		for _, p := range s.config.here() {
			s.residuals[p] = flat.NewHost(s.lead().Shape().Parameters)
		}
	}
	s.arrived.make = func() (v flat.Vector, err error) { return v, s.newVectors(&v) }
	for _, of := range s.segments {
		if err := of.share(s); err != nil {
			return err
		}
	}
	return nil
}

// lead is the stage of the first pipeline that trains here.
func (s *shard) lead() stage.Stage { return s.stages[s.config.here()[0]] }

// newVectors allocates vectors on the stages' device.
func (s *shard) newVectors(all ...*flat.Vector) error {
	for _, v := range all {
		made, err := s.lead().NewVector()
		if err != nil {
			return fmt.Errorf("allocate a vector of %d parameters for averaging: %w", s.lead().Shape().Parameters, err)
		}
		*v = made
	}
	return nil
}
