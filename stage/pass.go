package stage

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
)

// Forward implements Stage.
func (c *Computed) Forward(m Micro, input Boundary, labels []byte, output Boundary) error {
	if err := c.check(buffer{input, true}, buffer{OnHost(labels), c.last}, buffer{output, !c.last}); err != nil {
		return c.fail("forward", m, err)
	}
	if handed := !input.Memory.Absent(); handed != c.handed {
		return c.fail("forward", m, fmt.Errorf("its input is in device memory: %t, expected %t: Config.HandedInputs is %d", handed, c.handed, c.config.HandedInputs))
	}
	valid, err := c.checkIDs(input.Host, labels)
	if err != nil {
		return c.fail("forward", m, err)
	}
	weights, err := c.weightsOf(m.Version)
	if err != nil {
		return c.fail("forward", m, err)
	}
	s, err := c.takeSlot(m)
	if err != nil {
		return c.fail("forward", m, err)
	}
	c.begin(device.ForwardWork)
	s.weights, s.input, s.begins = weights, c.enter(s.input, input, c.passes.in), !c.begun || s.statistics != nil
	c.makeWeights()
	c.refresh()
	c.ownStatistics(s, c.between.clear)
	if c.last {
		c.enterTargets(s, labels, valid)
	}
	memory := c.bind(s)
	if !c.last {
		memory.External[layer.Output] = c.window(c.staged.output, output, c.passes.out)
	}
	c.passes.training.Forward.Run(c.dev, memory, c.args(s))
	if !c.last {
		c.leave(output, c.staged.output)
	}
	if err := c.end(); err != nil {
		return c.fail("forward", m, err)
	}
	s.state, c.step = forwarded, m.Step
	return nil
}

// end ends what a device with a queue may go on with alone. Of others it returns the failures.
func (c *Computed) end() error {
	if c.ready = c.dev.Record(); c.ready == nil {
		return c.dev.Synchronize()
	}
	return nil
}

// Ready implements Stage.
func (c *Computed) Ready() Event { return c.ready }

// args are the arguments of a micro-batch's passes.
func (c *Computed) args(s *slot) device.Args {
	seed := device.Mix(device.Mix(c.config.Seed) + uint64(c.config.Pipeline))
	return device.Args{
		Key: device.Mix(seed + s.micro.Step), First: s.micro.Index * c.config.Samples, Weight: s.micro.Weight, LossScale: s.scale, Fresh: c.fresh, Begins: s.begins,
	}
}

// enterTargets brings the targets of a micro-batch to the device.
func (c *Computed) enterTargets(s *slot, labels []byte, valid int) {
	s.targets, s.scale = c.enter(s.targets, OnHost(labels), targetPort), 0
	if valid > 0 {
		s.scale = s.micro.Weight / float32(valid)
	}
}

// backwardWork is what a device is told of each part.
var backwardWork = [...]device.WorkKind{Whole: device.BackwardWork, Input: device.BackwardInputWork, Weight: device.BackwardWeightWork}

// Backward implements Stage.
func (c *Computed) Backward(m Micro, part Part, doutput, dinput Boundary) error {
	s, err := c.slotOf(m, part)
	if err != nil {
		return c.fail("backward", m, err)
	}
	if part != Weight {
		if err := c.check(buffer{dinput, c.hasInputGradient()}, buffer{}, buffer{doutput, !c.last}); err != nil {
			return c.fail("backward", m, err)
		}
	}
	if s.weights, err = c.weightsOf(s.micro.Version); err != nil {
		return c.fail("backward", m, err)
	}
	c.begin(backwardWork[part])
	c.refresh()
	if part == Input {
		last := len(c.kept) - 1
		if last < 0 {
			return c.fail("backward", m, fmt.Errorf("%d micro-batches wait for their weight half already, the most that this stage was made for",
				c.config.WeightSlots))
		}
		s.kept, c.kept = c.kept[last], c.kept[:last]
	}
	c.backward(s, part, m.Last, doutput, dinput)
	if m.Squares {
		c.addFirst(part)
	}
	if err := c.end(); err != nil {
		return c.fail("backward", m, err)
	}
	return nil
}

// backward runs a part of a micro-batch's backward.
func (c *Computed) backward(s *slot, part Part, last bool, doutput, dinput Boundary) {
	memory, p := c.bind(s), &c.passes.training
	run := func(p *program.Program, after func(int)) {
		if !last || after == nil {
			p.Run(c.dev, memory, c.args(s))
		} else {
			p.RunTelling(c.dev, memory, c.args(s), after)
		}
	}
	if part == Weight {
		run(p.Weight, c.final.weight)
		s.kept, c.kept = device.Mem{}, append(c.kept, s.kept)
	} else {
		if !c.last {
			memory.External[layer.DOutput] = c.enter(c.staged.output, doutput, c.passes.out)
		}
		if c.hasInputGradient() {
			memory.External[layer.DInput] = c.window(c.staged.input, dinput, c.passes.in)
		}
		if s.scale != 0 {
			c.lossWeight += float64(s.micro.Weight)
		}
		if part == Whole {
			run(p.Whole, c.final.whole)
		} else {
			run(p.Input, nil)
		}
		if c.hasInputGradient() {
			c.leave(dinput, c.staged.input)
		}
	}
	if part == Input {
		s.state = inputReady
		return
	}
	c.ownStatistics(s, c.between.count)
	c.fresh, s.state = false, free
}

func (c *Computed) hasInputGradient() bool { return layer.Differentiable(c.passes.in) }

// Evaluate implements Stage. The parameters must be the stage's own or from NewVector, of a stage of the same layers on
// the same device. It runs between any two passes of a batch without disturbing them.
func (c *Computed) Evaluate(parameters flat.Vector, input, labels, output []byte) (Score, error) {
	scored := c.last && labels != nil
	fail := func(err error) (Score, error) { return Score{}, fmt.Errorf("%s: evaluate: %w", c.config.what(), err) }
	if err := c.check(buffer{OnHost(input), true}, buffer{OnHost(labels), scored}, buffer{OnHost(output), !c.last || output != nil}); err != nil {
		return fail(err)
	}
	targets, err := c.checkIDs(input, labels)
	if err != nil {
		return fail(err)
	}
	params, err := c.paramsOf(parameters)
	if err != nil {
		return fail(err)
	}
	c.begin(device.ForwardWork)
	s := slot{input: c.enter(c.staged.input, OnHost(input), c.passes.in), weights: c.weightsFor(parameters, params)}
	score := Score{Targets: targets}
	if output == nil && !c.config.stagesOutput() {
		s.targets = c.enter(c.staged.targets, OnHost(labels), targetPort)
		c.passes.losses.Forward.Run(c.dev, c.bind(&s), device.Args{})
		score.Loss = c.lossOf(targets)
	} else {
		memory, out := c.bind(&s), c.staged.output
		if output != nil && c.host {
			out = wrap(output, c.passes.out)
		}
		memory.External[layer.Output] = out
		c.passes.output.Forward.Run(c.dev, memory, device.Args{})
		if output != nil && !c.host {
			c.dev.Download(output, out)
		}
		if scored {
			c.score(&score, out, labels)
		}
	}
	if err := c.dev.Synchronize(); err != nil {
		return fail(err)
	}
	return score, nil
}

// paramsOf finds the tensors in a vector of parameters; nil is the stage's own.
func (c *Computed) paramsOf(v flat.Vector) ([]device.Mem, error) {
	if v == nil {
		return c.role(parameter), nil
	}
	mem, err := c.vector(v)
	if err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	c.bindVector(source, mem)
	return c.role(source), nil
}

// weightsFor is what passes read that compute with a vector of parameters, of which these are the tensors.
func (c *Computed) weightsFor(v flat.Vector, params []device.Mem) []device.Mem {
	if v == nil {
		v = c.parameters
	}
	c.copy(v, params)
	for i := range c.tensors {
		if c.evaluated[i] = params[i]; c.copied(&c.tensors[i]) {
			c.evaluated[i] = c.role(weight)[i]
		}
	}
	return c.evaluated
}

// vector is the memory of a vector of the stage's length on its device.
func (c *Computed) vector(v flat.Vector) (device.Mem, error) {
	mem, ok := device.VectorMem(c.dev, v)
	if !ok {
		return mem, fmt.Errorf("a %T was given; it must be a vector that NewVector made on the same device", v)
	}
	if mem.Len() != c.shape.Parameters {
		return mem, fmt.Errorf("the vector has %d elements; the stage has %d", mem.Len(), c.shape.Parameters)
	}
	return mem, nil
}

// buffer is one of a call's, and whether the call uses it.
type buffer struct {
	Boundary
	used bool
}

// check compares the lengths of a call's buffers with the stage's shape.
func (c *Computed) check(input, labels, output buffer) error {
	for _, f := range [...]struct {
		name string
		buffer
		want int
	}{
		{"input boundary", input, c.shape.InputBytes},
		{"labels", labels, c.shape.LabelBytes},
		{"output boundary", output, c.shape.OutputBytes},
	} {
		if f.used && f.Bytes() != f.want {
			return fmt.Errorf("the %s buffer has %d bytes, want %d", f.name, f.Bytes(), f.want)
		}
	}
	return nil
}

// checkIDs refuses token ids and targets that the model does not have, before they index a table. It returns the number
// of targets that are not ignored.
func (c *Computed) checkIDs(input, labels []byte) (valid int, err error) {
	if c.first {
		if err := c.checkInput(input); err != nil {
			return 0, err
		}
	}
	if !c.last {
		return 0, nil
	}
	for i, id := range device.Values[int32](labels) {
		if id < -1 || int(id) >= c.config.Model.Loss.Classes {
			return 0, fmt.Errorf("target %d at index %d; targets are 0 to %d, or -1 for none",
				id, i, c.config.Model.Loss.Classes-1)
		}
		if id >= 0 {
			valid++
		}
	}
	return valid, nil
}

// checkInput refuses values that an input port does not take.
func (c *Computed) checkInput(input []byte) error {
	ports := c.passes.in
	words := wrap(input, ports)
	for i, p := range ports {
		if p.Limit == 0 {
			continue
		}
		if err := checkPort(p, layer.Cut(words, ports, i).I32(), p.Elements/c.config.Samples); err != nil {
			return err
		}
	}
	return nil
}

// checkPort refuses values that a port does not take. Each sample has so many.
func checkPort(p layer.Port, values []int32, each int) error {
	for i, id := range values {
		if id < 0 || int(id) >= p.Limit {
			return fmt.Errorf("%s is %d at sample %d, position %d; the model takes 0 to %d", p.Name, id, i/each, i%each, p.Limit-1)
		}
	}
	return nil
}

// targetPort is how targets are stored.
var targetPort = []layer.Port{{Name: "targets", Type: device.I32}}

// enter brings a boundary to the device: as it is, wrapped, or copied to own.
func (c *Computed) enter(own device.Mem, b Boundary, ports []layer.Port) device.Mem {
	if c.apart(b) {
		c.dev.Upload(own, b.Host)
	}
	return c.window(own, b, ports)
}

// leave brings what the device has in own to a boundary, where window did not give it that boundary's memory.
func (c *Computed) leave(b Boundary, own device.Mem) {
	if c.apart(b) {
		c.dev.Download(b.Host, own)
	}
}

// apart reports whether the device cannot use a boundary where it is.
func (c *Computed) apart(b Boundary) bool { return !c.host && b.Memory.Absent() }

// window is where the device has what a boundary holds, or is to receive.
func (c *Computed) window(own device.Mem, b Boundary, ports []layer.Port) device.Mem {
	switch {
	case !b.Memory.Absent():
		return layer.View(b.Memory, ports)
	case c.host:
		return wrap(b.Host, ports)
	}
	return own
}

// NewBoundary allocates a boundary buffer: n bytes that begin at a multiple of 64.
func NewBoundary(n int) []byte {
	const align = 64
	b := make([]byte, n+align)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (align - 1))
	return b[skip : skip+n : skip+n]
}

// wrap views a host buffer as memory of a device that shares the host's: of the port's type when there is one port, else in
// words.
func wrap(b []byte, ports []layer.Port) device.Mem {
	t := device.F32
	if len(ports) == 1 {
		t = ports[0].Type
	}
	return device.NewMem(unsafe.Pointer(unsafe.SliceData(b)), len(b)/t.Bytes(), t)
}

// takeSlot finds a free slot for a micro-batch.
func (c *Computed) takeSlot(m Micro) (*slot, error) {
	var found *slot
	for i := range c.slots {
		s := &c.slots[i]
		if s.state == free {
			if found == nil {
				found = s
			}
		} else if s.micro.Index == m.Index && s.micro.Step == m.Step {
			return nil, errors.New("it is in flight already: its backward has not run")
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%d micro-batches are in flight already, the most that this stage was made for", len(c.slots))
	}
	found.micro = m
	return found, nil
}

// slotOf finds the slot of a micro-batch whose part may run now.
func (c *Computed) slotOf(m Micro, part Part) (*slot, error) {
	if c.tiesSummed {
		return nil, errors.New("the batch has ended: its gradients were summed; call ZeroGradients first")
	}
	if part > Weight {
		return nil, fmt.Errorf("unknown part %d", part)
	}
	want := forwarded
	if part == Weight {
		want = inputReady
	}
	for i := range c.slots {
		s := &c.slots[i]
		if s.state != free && s.micro.Index == m.Index && s.micro.Step == m.Step {
			if s.state != want {
				return nil, errors.New("its halves run out of order: Input, then Weight, each once")
			}
			return s, nil
		}
	}
	return nil, errors.New("it is not in flight: its forward has not run, or its backward has")
}

func (c *Computed) fail(what string, m Micro, err error) error {
	return fmt.Errorf("%s: %s of micro-batch %d of step %d: %w", c.config.what(), what, m.Index, m.Step, err)
}
