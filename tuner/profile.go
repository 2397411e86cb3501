package tuner

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Profile is what measuring found out about a job on its devices: the times of every layer, the devices, the links. Times are
// in seconds.
type Profile struct {
	// Samples are the sizes of micro-batch that were measured, ascending.
	Samples []int
	Layers  []Layer
	// Devices in the order of the pipeline: stage s of S on K devices lives on one of Devices[0..K-1].
	Devices []Device
	// Links[d] is between Devices[d] and Devices[d+1].
	Links []Link
	// Contention is how many times as long passes take, by samples, when several pipelines share the devices: more than 1 where they
	// take caches and memory bandwidth from each other, less where a device that is not left idle works faster. Without a size: 1.
	Contention Curve
	// OptimizerContention is the same of optimizer steps. 0 stands for 1.
	OptimizerContention float64
	// DispatchLatency is the time between two ops on a device that has both at hand.
	DispatchLatency float64
	// Fixed are the times of stages that do not depend on their layers, the last entry standing for all further stages. Empty: all
	// do.
	Fixed []FixedCosts
	// HostBytes is what all devices that name no capacity of their own may hold together; 0 is no limit.
	HostBytes int64
	// Sizer prices the memory of stages.
	Sizer Sizer
}

// FixedCosts are what a stage takes whichever layers it has and however many samples are in its micro-batches, in seconds: emulated
// devices can be told so. 0 leaves a time to the layers.
type FixedCosts struct {
	Forward, Backward, Update float64
}

// Layer is one layer of the model, on a device of speed 1.
type Layer struct {
	Name string
	// Times of one micro-batch by its samples. BackwardInput and BackwardWeight are the halves of a split backward.
	Forward, Backward, BackwardInput, BackwardWeight Curve
	// Optimizer is one optimizer step, Average averaging one pipeline with the center once.
	Optimizer, Average float64
	// OutputBytes is what the layer hands on for one sample.
	OutputBytes float64
	// ActivationBytes is what one sample holds between forward and backward.
	ActivationBytes float64
	Parameters      int64
}

// Device is one device of a profile.
type Device struct {
	Name string
	// Slowdown is how many times as long as on Devices[0] everything takes here.
	Slowdown float64
	// CapacityBytes is the memory of the device's own; 0 where it shares the host's.
	CapacityBytes int64
	// Shares is how many devices right before this one have their stages in the same memory and take the same time, as rows of a plan on one GPU do;
	// 0: they are this one's alone, or it is the first of those.
	Shares int
}

// memory is the first of the devices that share the memory of one.
func (p *Profile) memory(device int) int { return device - p.Devices[device].Shares }

// memories are those of all devices.
func (p *Profile) memories() (in []int) {
	for d := range p.Devices {
		in = append(in, p.memory(d))
	}
	return in
}

// Link says how long a message takes between two neighbouring devices: LatencySeconds + bytes * SecondsPerByte, of which the
// second part occupies the link.
type Link struct {
	LatencySeconds float64 `json:"latency_seconds"`
	SecondsPerByte float64 `json:"seconds_per_byte"`
}

// StageSpec is what the memory of a stage depends on.
type StageSpec struct {
	From, To int // layers
	Samples  int // in a micro-batch
	Slots    int // micro-batches that are in flight at once
	// MicroBatches is how many the plan has: those of several batches where it runs on across them.
	MicroBatches int
	WeightSlots  int // that are between the halves of their backward at once
	Versions     int // of the weights that are kept at once
	Recompute    string
	Pipelines    int
	// HandedInputs and HandedOutputs are the boundaries that it has in device memory at once: see schedule.Handed.
	HandedInputs, HandedOutputs int
	// LandedInputs and LandedGradients are those that are copied there from another device: see schedule.Landed. A Sizer of devices that copy nothing
	// from each other looks at neither.
	LandedInputs, LandedGradients int
}

// Sizer prices stages without making them. It must give the same answer for the same question.
type Sizer interface {
	// Stage is what a stage takes, of all pipelines and the center.
	Stage(StageSpec) (Memory, error)
}

// Validate reports all that no prediction can be made from.
func (p *Profile) Validate() (err error) {
	if len(p.Layers) == 0 || len(p.Devices) == 0 || len(p.Links) != len(p.Devices)-1 || p.Sizer == nil {
		return fmt.Errorf("profile: %d layers on %d devices with %d links, Sizer %T; at least 1 of each, a link between two devices and a Sizer are needed",
			len(p.Layers), len(p.Devices), len(p.Links), p.Sizer)
	}
	curve := func(of string, curves ...Curve) {
		for _, c := range curves {
			if invalid := c.Validate(); invalid != nil {
				err = errors.Join(err, fmt.Errorf("profile: %s: %w", of, invalid))
			}
		}
	}
	numbers := func(of string, values ...float64) {
		if slices.ContainsFunc(values, func(v float64) bool { return !positive(v) }) {
			err = errors.Join(err, fmt.Errorf("profile: %s: %v; want finite, at least 0", of, values))
		}
	}
	for _, l := range p.Layers {
		curve("layer "+l.Name, l.Forward, l.Backward, l.BackwardInput, l.BackwardWeight)
		numbers("layer "+l.Name+": optimizer s, average s, output bytes", l.Optimizer, l.Average, l.OutputBytes)
	}
	for d, one := range p.Devices {
		numbers(fmt.Sprintf("device %d: slowdown, its inverse, capacity", d), one.Slowdown, 1/one.Slowdown, float64(one.CapacityBytes))
	}
	for d, l := range p.Links {
		numbers(fmt.Sprintf("link %d: latency s, s a byte", d), l.LatencySeconds, l.SecondsPerByte)
	}
	for s, c := range p.Fixed {
		numbers(fmt.Sprintf("fixed costs of stage %d: forward, backward, update s", s), c.Forward, c.Backward, c.Update)
	}
	numbers("dispatch latency s, contention of the optimizer", p.DispatchLatency, p.OptimizerContention)
	if len(p.Contention.Samples) > 0 {
		curve("contention", p.Contention)
	}
	return err
}

// contention is what passes and optimizer steps of one of so many pipelines are multiplied by.
func (p *Profile) contention(pipelines, samples int) (passes, optimizer float64) {
	passes, optimizer = 1, 1
	if pipelines == 1 {
		return passes, optimizer
	}
	if measured := p.Contention.Samples; len(measured) > 0 {
		passes = p.Contention.At(min(max(samples, measured[0]), measured[len(measured)-1]))
	}
	if p.OptimizerContention > 0 {
		optimizer = p.OptimizerContention
	}
	return passes, optimizer
}

// positive reports whether a time is finite and at least 0; false for NaN.
func positive(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

// Summary is the profile for people.
func (p *Profile) Summary() Summary {
	s := Summary{Samples: p.Samples, Device: p.Devices[0].Name, DispatchSeconds: p.DispatchLatency, Links: p.Links}
	for _, n := range p.Samples {
		passes, _ := p.contention(2, n)
		s.Contention = append(s.Contention, passes)
	}
	middle := p.Samples[len(p.Samples)/2]
	for _, l := range p.Layers {
		s.Layers = append(s.Layers, LayerSummary{
			Name: l.Name, ForwardSeconds: l.Forward.At(middle),
			BackwardInputSeconds: l.BackwardInput.At(middle), BackwardWeightSeconds: l.BackwardWeight.At(middle),
			OptimizerSeconds: l.Optimizer, ActivationBytes: int64(l.ActivationBytes * float64(middle)),
			OutputBytes: int64(l.OutputBytes * float64(middle)), Parameters: l.Parameters,
		})
	}
	return s
}
