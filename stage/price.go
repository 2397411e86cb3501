package stage

import "github.com/avgpipe/avgpipe/stage/device"

// Bytes is the device memory that New takes for one stage of one pipeline, by what it is for.
type Bytes struct {
	Vector      int64 // one flat vector of the stage, as NewVector makes them
	Parameters  int64 // the parameters, with the copies that products read, older versions and predicted ones
	Gradients   int64
	State       int64 // of the optimizer
	Frozen      int64 // the parameters that are not trained, which the stages of all pipelines on a device share
	FrozenFlat  int64 // what they take in host memory while they are read: a flat vector
	Activations int64 // slots, weight slots and the work space of passes and predictions
	Boundaries  int64 // losses, and copies of the boundaries where the device does not see the host's memory
	// Padding is what these take in addition in the host's memory, where allocations end on whole pages (device.HostPages).
	// It is not part of Total, which is what the stage allocates on the device.
	Padding int64
	// Scratch is what the operations take in the host's memory beside their operands, once for the pipelines that share the device.
	Scratch int64
	// Workspace is what a device.Planner takes of its memory beside their operands, once for the pipelines that share the device.
	Workspace int64
}

// Total is what the stage allocates on its device for itself: all but Vector, what is Frozen, Padding, Scratch and Workspace.
func (b Bytes) Total() int64 {
	return b.Parameters + b.Gradients + b.State + b.Activations + b.Boundaries
}

// Bytes prices the stage that New would make, without making it. It is exact.
func (c Config) Bytes() (Bytes, error) {
	s, err := c.plan()
	if err != nil {
		return Bytes{}, err
	}
	s.pretends = true
	if err := s.allocate(); err != nil {
		return Bytes{}, err
	}
	b, c := s.price, s.config
	b.Vector = int64(max(s.shape.Parameters, 1) * device.F32.Bytes())
	frozen, _ := place(s.layers, true)
	_, err = c.store(frozen, func(t device.Type, n int) (device.Mem, error) {
		b.Frozen += int64(n * t.Bytes())
		b.FrozenFlat += int64(n * device.F32.Bytes())
		return device.NewSymbol(t, n), nil
	}, device.F32, device.BF16)
	planners := device.PlannersOf(c.Device)
	for _, planner := range planners {
		b.Workspace += int64(planner.Workspace(s.passes.ops()))
	}
	if len(planners) > 0 {
		return b, err
	}
	var scratch device.Scratch
	for _, op := range s.passes.ops() {
		scratch.Add(op)
	}
	b.Scratch = int64(scratch.Bytes())
	return b, err
}
