package stage

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
)

// Bytes is the device memory that New takes for one stage of one pipeline, by what it is for.
type Bytes struct {
	Vector      int64 // one flat vector of the stage, as NewVector makes them
	Parameters  int64 // the parameters, with the copies that products read and older versions
	Gradients   int64
	State       int64 // of the optimizer
	Frozen      int64 // the parameters that are not trained, which the stages of all pipelines on a device share
	FrozenFlat  int64 // what they take in host memory while they are read: a flat vector
	Activations int64 // slots, weight slots and the work space of passes
	Boundaries  int64 // losses, and copies of the boundaries where the device does not see the host's memory
	// Padding is what these take in addition in the host's memory, where allocations end on whole pages (device.HostPages).
	// It is not part of Total, which is what the stage allocates on the device.
	Padding int64
	// Scratch is what the operations take in the host's memory beside their operands, once for the pipelines that share the device.
	Scratch int64
}

// Total is what the stage allocates on its device for itself: all but Vector, what is Frozen, Padding and Scratch.
func (b Bytes) Total() int64 {
	return b.Parameters + b.Gradients + b.State + b.Activations + b.Boundaries
}

// Bytes prices the stage that New would make, without making it. It is exact.
func (c Config) Bytes() (Bytes, error) {
	if err := c.Validate(); err != nil {
		return Bytes{}, err
	}
	c = c.withDefaults()
	tensors, length := place(c.layers(), false)
	p := c.passes()
	s := Computed{config: c, layers: c.layers(), last: c.last(), tensors: tensors}
	var scratch device.Scratch
	for _, pass := range []*program.Program{p.evaluation.output.Forward, p.training.Forward, p.training.Whole} {
		if pass != nil {
			for _, op := range pass.Ops() {
				scratch.Add(op)
			}
		}
	}
	words := func(n int) int64 { return int64(max(n, 1) * device.F32.Bytes()) }
	b := Bytes{Vector: words(length), Parameters: words(length) + int64(s.stashBytes()), Scratch: int64(scratch.Bytes())}
	taken := func(bytes int64, times int) int64 {
		b.Padding += int64(times) * (device.HostPages(bytes) - bytes)
		return int64(times) * bytes
	}
	taken(b.Vector, 1) // the parameters
	b.Parameters += taken(c.copyBytes(tensors), 1)
	taken(int64(s.stashBytes())/int64(max(c.Versions-1, 1)), c.Versions-1)
	f32, bf16 := c.frozenElements()
	b.FrozenFlat = int64((f32 + bf16) * device.F32.Bytes())
	b.Frozen = int64(f32*device.F32.Bytes() + bf16*device.BF16.Bytes())
	b.Activations = taken(words(floats(p.arena)), 1)
	if !c.ForwardOnly {
		b.Gradients = taken(words(length), 1)
		b.State = taken(words(length), c.Optimizer.StateVectors())
		b.Activations += int64(device.F64.Bytes()) // the sum of squared gradients
		b.Activations += taken(words(p.inFlight(c)), c.Slots) + taken(words(floats(p.training.Kept)), c.WeightSlots)
	}
	if c.last() {
		b.Boundaries = 2 * words(c.Model.Loss.Targets(c.size()))
	}
	if c.stagesOutput() {
		b.Boundaries += words(layer.Words(p.out))
	}
	if !c.Device.Host() {
		b.Boundaries += words(layer.Words(p.in))
		if c.last() {
			b.Boundaries += words(c.Model.Loss.Targets(c.size()))
		}
	}
	return b, nil
}

// copyBytes is what allocateCopies takes.
func (c Config) copyBytes(tensors []tensor) int64 {
	total := 0
	for _, t := range tensors {
		if c.narrow(t.param) {
			total += layer.Padded(t.param.Len())
		}
	}
	return int64(total * device.BF16.Bytes())
}
