package profile

import (
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/tuner"
)

// sizer prices stages exactly: by what package stage would allocate, and by what the links and the averaging of package pipeline
// keep beside it.
type sizer struct {
	subject *subject
	on      device.Device // nothing is allocated there; layers ask it how much they save
	known   map[tuner.StageSpec]priced
}

type priced struct {
	memory tuner.Memory
	vector int64
}

// Stage implements tuner.Sizer.
func (z *sizer) Stage(spec tuner.StageSpec) (tuner.Memory, int64, error) {
	if p, ok := z.known[spec]; ok {
		return p.memory, p.vector, nil
	}
	s := z.subject
	c := stage.Config{
		Device: z.on, Model: s.model, Range: stage.Range{From: spec.From, To: spec.To}, Samples: spec.Samples, Sequence: s.sequence,
		Compute: s.compute, Slots: max(spec.Slots, 1), WeightSlots: spec.WeightSlots, Versions: spec.Versions, Recompute: stage.Recompute(spec.Recompute),
		Optimizer: stage.Optimizer{Name: s.request.Job.Optimizer.Name, Momentum: s.request.Job.Optimizer.Momentum},
	}
	b, err := c.Bytes()
	if err != nil {
		return tuner.Memory{}, 0, err
	}
	shape, err := c.Shape()
	if err != nil {
		return tuner.Memory{}, 0, err
	}
	p := priced{vector: b.Vector, memory: tuner.Memory{
		Weights: b.Parameters, Gradients: b.Gradients, State: b.State, Activations: b.Activations + b.Boundaries,
		Boundaries: z.messages(shape, spec),
	}}
	z.known[spec] = p
	return p.memory, p.vector, nil
}

// messages is what a stage's links hold in host memory: the input of each in flight micro-batch, which stays until its backward has
// run; a gradient that arrived and one that leaves; and, at the ends of the pipeline, two batches of data, of which one is
// filled ahead.
func (z *sizer) messages(s stage.Shape, spec tuner.StageSpec) int64 {
	micros := z.subject.request.Job.Train.Batch / spec.Samples
	n := 0
	if s.First {
		n += 2 * micros * s.InputBytes
	} else {
		n += spec.Slots*s.InputBytes + s.InputBytes
	}
	if s.Last {
		n += 2 * micros * s.LabelBytes
	} else {
		n += s.OutputBytes
	}
	return int64(n)
}

// Vectors implements tuner.Sizer: the center, the sum of a round, the method's state, each pipeline's messages and, always, the
// evaluator's copy.
func (z *sizer) Vectors(pipelines int) int {
	const evaluator = 1
	m, err := z.subject.method(pipelines)
	if err != nil {
		return evaluator
	}
	needs := m.Needs()
	if needs.Identity {
		return needs.CenterState + evaluator
	}
	return 2 + needs.CenterState + pipelines*needs.Timing.Buffers() + evaluator
}
