// Package footprint says how much memory the stages of a job take: on their devices, and in the worker process beside that. Tuning
// and admission both ask it. bench/tuner compares its answers with processes.
package footprint

import (
	"fmt"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// Sizer implements tuner.Sizer for the stages of one job.
type Sizer struct {
	job   *job.Job
	model *model.Model
	on    device.Device // nothing is allocated there; layers ask it how much they save
	host  device.Device // the same of a stage that has none of the modules of its model
	known map[tuner.StageSpec]tuner.Memory
}

// New sizes the stages of a job on a device like on, in whose memory the job's devices have theirs, or, where a stage has none of the modules of a user's program, on one like host. Of the job's counts it reads the batch and the groups alone.
func New(m *model.Model, j *job.Job, on, host device.Device) *Sizer {
	return &Sizer{job: j, model: m, on: on, host: host, known: map[tuner.StageSpec]tuner.Memory{}}
}

// Size is a micro-batch of so many samples of a job. A sequence that is too long for the model is refused at admission.
func Size(m *model.Model, j *job.Job, samples int) layer.Size {
	size := layer.Size{B: samples, T: m.Sequence(), Compute: device.Floating(j.Precision)}
	if n := j.Data.Sequence; n > 0 && n <= size.T {
		size.T = n
	}
	return size
}

// OutputBytes is what a layer of a job's model, at the end of a stage, hands on of a micro-batch of this size.
func OutputBytes(l layer.Layer, j *job.Job, size layer.Size) int {
	_, out := layer.Ports(l, size)
	return device.F32.Bytes() * layer.Words(layer.Crossing(out, device.Floating(j.BoundaryPrecision)))
}

// workspace is what a stage adds to its process that nobody allocates for it: compiled kernels, threads and their stacks, programs.
// bench/tuner, part memory, holds it to processes.
const workspace = 1 << 20

// ProcessBytes is what a worker process takes before it trains: pages of its program and of libraries, which the workers of a host share, and the Go runtime.
// Measured as VmHWM of workers of avgpiped with oneDNN whose stages take 2 MB: 45 MB, of which 33 MB are pages of files. bench/tuner, part memory, prints that of
// its own, smaller program ("empty worker"), 36 MB.
const ProcessBytes = 44 << 20

// What a worker takes for GPUs beside its stages: of the memory of each its CUDA context, with kernels, and for each queue the work space of cuBLAS; and of
// the host's the driver with its libraries, once, and for each queue of a device page-locked memory that copies pass through. Figures of the driver's documentation and of
// other programs: no worker of ours has been measured.
const (
	ContextBytes = 512 << 20
	queueBytes   = 32 << 20
	driverBytes  = 512 << 20
	stagingBytes = 32 << 20
)

// Contexts is how many CUDA contexts are on the GPU of a row of a plan: of our own stages that of the worker, and of a user's modules one for the interpreter
// of each row that shares it.
func Contexts(j *job.Job, row, rows int) int64 {
	if !j.ModulesOnGPUs() {
		return 1
	}
	n := int64(0)
	for r := range rows {
		if j.Devices.GPU.Of(r, rows) == j.Devices.GPU.Of(row, rows) {
			n++
		}
	}
	return n
}

// Stage implements tuner.Sizer.
func (z *Sizer) Stage(spec tuner.StageSpec) (tuner.Memory, error) {
	if m, ok := z.known[spec]; ok {
		return m, nil
	}
	asked, onGPU := spec, z.job.Devices.Kind == job.KindGPU && !z.job.ModulesOnGPUs()
	if !onGPU { // boundaries cross in the memory of the host
		spec.HandedInputs, spec.HandedOutputs, spec.LandedInputs, spec.LandedGradients = 0, 0, 0, 0
	}
	on := z.on
	if !z.model.HasModules(spec.From, spec.To) {
		on = z.host
	}
	size := Size(z.model, z.job, spec.Samples)
	c := stage.Config{
		Device: on, Model: z.model, Range: stage.Range{From: spec.From, To: spec.To}, Samples: size.B, Sequence: size.T,
		Compute: size.Compute, Boundary: device.Floating(z.job.BoundaryPrecision), Slots: max(spec.Slots, 1), WeightSlots: spec.WeightSlots, Versions: spec.Versions, Recompute: stage.Recompute(spec.Recompute),
		HandedInputs: spec.HandedInputs, HandedOutputs: spec.HandedOutputs, LandedInputs: spec.LandedInputs, LandedGradients: spec.LandedGradients, KeptApart: z.job.ModulesOnGPUs(), Optimizer: stage.Optimizer{Name: z.job.Optimizer.Name, Momentum: z.job.Optimizer.Momentum},
	}
	all := spec.Pipelines * max(1, z.job.Groups)
	method, err := jobfile.AveragingOpen(z.job, all)
	if err != nil {
		return tuner.Memory{}, fmt.Errorf("memory of averaging: %w", err)
	}
	c.Predicts = method.Needs().Predicts
	b, err := c.Bytes()
	if err != nil {
		return tuner.Memory{}, err
	}
	shape, err := c.Shape()
	if err != nil {
		return tuner.Memory{}, err
	}
	n, queues := int64(spec.Pipelines), int64(1)
	if onGPU {
		queues = int64(device.QueuesFor(spec.Pipelines))
	}
	vectors := int64(method.Needs().Vectors(all, max(1, z.job.Groups), spec.Pipelines)) + 1 // and the evaluator's copy
	exchanged := z.exchanged(method.Needs(), int64(all), n) * b.Vector
	kept := int64(0) // what rounding leaves out of messages
	if all > spec.Pipelines && method.Config().Precision.Feedback() {
		kept = n * b.Vector
	}
	m := tuner.Memory{
		Weights: n*b.Parameters + b.Frozen, Gradients: n * b.Gradients, State: n * b.State, Activations: n*(b.Activations+b.Boundaries) + queues*b.Workspace,
		Center: vectors * b.Vector, Boundaries: n*z.messages(shape, spec) + exchanged,
		Host: workspace + kept + max(kept+z.snapshot(method.Needs(), n, int64(c.Optimizer.StateVectors()))*b.Vector, b.FrozenFlat),
	}
	if z.job.ModulesOnGPUs() {
		if m.Copies, err = copies(c, b, shape, n); err != nil {
			return tuner.Memory{}, err
		}
		m.Host += driverBytes
	}
	if onGPU {
		m.Queues = queues * queueBytes
		if m.Host += queues * stagingBytes; spec.From == 0 {
			m.Host += driverBytes
		}
	}
	if on.Host() {
		m.Host += b.Scratch + n*b.Padding + vectors*(device.HostPages(b.Vector)-b.Vector)
	}
	z.known[asked] = m
	return m, nil
}

// copies is what an interpreter has on a GPU of a stage of so many pipelines: copies of weights and gradients; of each micro-batch in flight what crosses and what
// is kept; as much again of one pass, for what is not kept; and the work space of its libraries. Nobody has measured it.
func copies(c stage.Config, b stage.Bytes, shape stage.Shape, pipelines int64) (int64, error) {
	c.KeptApart = false
	with, err := c.Bytes()
	if err != nil {
		return 0, err
	}
	kept, slots := with.Activations-b.Activations, int64(c.Slots)
	crossing := slots * int64(shape.InputBytes+shape.OutputBytes)
	return b.Frozen + pipelines*(b.Parameters+b.Gradients+crossing+kept) + (crossing+kept)/slots + queueBytes, nil
}

// exchanged is how many vectors of the stage links to and from the other groups hold, some more than there are buffers for: the messages of segments that those own and
// their sums, and the other way round.
func (z *Sizer) exchanged(needs elastic.Needs, all, here int64) int64 {
	groups := max(1, int64(z.job.Groups))
	others := all - here
	vectors := (here*(groups-1)+groups-1)/groups + (others+groups-1)/groups + 2 // messages out and in; sums
	if others == 0 {
		vectors = 0
	}
	return vectors * int64(needs.Buffers()+1)
}

// messages is what a stage's links hold in host memory: the input of each micro-batch in flight, which stays until its backward has
// run; a gradient that arrived and one that leaves; and, at the ends of the pipeline, two batches of data, of which one is
// filled ahead, and as many more as the stage has micro-batches of at once by a plan that runs on across batches. What is handed over in device memory is the stage's, and not counted here.
func (z *Sizer) messages(s stage.Shape, spec tuner.StageSpec) int64 {
	micros := z.job.Train.Batch / spec.Samples
	n, batches := 0, 2
	if spec.MicroBatches > micros {
		batches += (spec.Slots - 1 + micros - 1) / micros
	}
	if s.First {
		n += batches * micros * s.InputBytes
	} else if z.on.Host() || spec.HandedInputs == 0 {
		n += spec.Slots*s.InputBytes + s.InputBytes
	}
	if s.Last {
		n += batches * micros * s.LabelBytes
	} else if z.on.Host() || spec.HandedOutputs == 0 {
		n += s.OutputBytes
	}
	return int64(n)
}

// snapshot is how many vectors a commit copies to host memory before it writes them. The copy stays for the next commit.
func (z *Sizer) snapshot(needs elastic.Needs, pipelines, state int64) int64 {
	center := int64(1)
	if z.job.Center.State == "center" {
		return center + int64(needs.Keeps())
	}
	if needs.Identity || needs.Gradients { // the center is a pipeline's parameters
		center--
	}
	return center + int64(needs.Keeps()) + pipelines*(1+state+int64(needs.PipelineKeeps()))
}
