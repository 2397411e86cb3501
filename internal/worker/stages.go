package worker

import (
	"context"
	"errors"

	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/model"
)

// stage is the configuration of stage s in a pipeline.
func (h *host) stage(s *hosted, pipeline int) stage.Config {
	spec := h.assignment.Spec.Job
	inputs, outputs := schedule.Handed(h.plan, func(row, other int) bool { return h.share(row, other) || h.copies(row, other) })
	landed, gradients := schedule.Landed(h.plan, h.copies)
	return stage.Config{
		Device: s.device, Model: h.model, Range: h.ranges[s.index], Index: s.index, Count: len(h.ranges),
		Samples: h.samples(), Sequence: h.sequence(),
		Compute: device.Floating(spec.Precision), Boundary: device.Floating(spec.BoundaryPrecision),
		Slots: schedule.InFlightByStage(h.plan)[s.index], WeightSlots: schedule.HalvesByStage(h.plan)[s.index],
		Versions:     schedule.VersionsByStage(h.plan)[s.index],
		HandedInputs: inputs[s.index], HandedOutputs: outputs[s.index], LandedInputs: landed[s.index], LandedGradients: gradients[s.index],
		Recompute: stage.Recompute(job.At(spec.Recompute, s.index)), Optimizer: h.optimizer(), Seed: spec.Seed, Pipeline: pipeline,
		Predicts: h.predicts(), KeptApart: spec.ModulesOnGPUs(),
	}
}

// predicts reports whether passes read weights that the averaging method predicts.
func (h *host) predicts() bool {
	method, err := jobfile.Averaging(&h.assignment.Spec.Job.Averaging, int(h.assignment.Spec.Job.Pipelines))
	return err == nil && method.Needs().Predicts
}

// priceStages finds what the stages that live here will take and send.
func (h *host) priceStages(context.Context) (err error) {
	for i := range h.stages {
		s := &h.stages[i]
		c := h.stage(s, 0)
		if s.bytes, err = c.Bytes(); err != nil {
			return err
		}
		if s.shape, err = c.Shape(); err != nil {
			return err
		}
	}
	return nil
}

// newStage makes stage s of a pipeline. Every pipeline starts with the same weights.
func (h *host) newStage(ctx context.Context, s *hosted, pipeline int) (*stage.Computed, error) {
	config := h.stage(s, pipeline)
	if err := h.loadFrozen(ctx, s, config); err != nil {
		return nil, err
	}
	config.Frozen = s.frozen.memory
	c, err := stage.New(config)
	if err != nil {
		return nil, err
	}
	if h.assignment.Restore != nil { // the round holds the values; and another stage may be opening the weights, to make a lost file again
		return c, nil
	}
	if begins := h.begins(s, config); begins != nil {
		if err := s.beginning(c.Load(begins)); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// begins finds what the parameters of a stage begin with: what model.from has, what the user's modules were built with, or, for layers in front of those, what the
// seed makes. Nil: the seed makes all.
func (h *host) begins(s *hosted, c stage.Config) stage.Lookup {
	var places []stage.Lookup
	if h.weights != nil {
		places = append(places, h.weights.Lookup)
	}
	if s.on.initial != nil {
		places = append(places, s.on.initial)
		if front := h.model.Front(); front != nil && h.weights == nil {
			places = append(places, seeded(front, c.Seed))
		}
	}
	if places == nil {
		return nil
	}
	return func(name string) (shape []int, values []float32, ok bool, err error) {
		for _, place := range places {
			if shape, values, ok, err = place(name); ok || err != nil {
				return shape, values, ok, err
			}
		}
		return nil, nil, false, nil
	}
}

// seeded finds what the parameters of a model begin with by a seed.
func seeded(m *model.Model, seed uint64) stage.Lookup {
	return func(name string) ([]int, []float32, bool, error) {
		for _, p := range m.Params() {
			if p.Name == name {
				values := make([]float32, p.Len())
				stage.InitialValues(p, seed, values)
				return p.Shape, values, true, nil
			}
		}
		return nil, nil, false, nil
	}
}

// beginning is an error about what a stage begins with: a process that knows it may end, and a file is as it is.
func (s *hosted) beginning(err error) error {
	if err == nil || s.on.initial != nil {
		return err
	}
	return &permanentError{err}
}
