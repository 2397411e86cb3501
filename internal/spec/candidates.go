package spec

import (
	"errors"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/tuner"
)

// Candidates are the ways to run an open job, of which a tuning chooses one, and admission asks whether any fits the memory.
type Candidates struct {
	Facts  // the model, the cores and the memory
	Job    *job.Job
	Sizer  *footprint.Sizer
	Device string // what the devices are
}

// Price is what a price model assumes of a device before anything of a job is measured.
type Price struct {
	FLOPs float64 // floating-point operations a second
	Bytes float64 // a second, of memory that an optimizer step or an averaging passes over
	Layer float64 // seconds of a layer's forward however small it is: some ten kernels; a backward has twice as many
	Op    float64 // seconds between two ops of the plan
	Step  float64 // seconds that a step takes beside its passes: data, messages, events
}

// Space is what the job leaves open. Its targets have no profile yet.
func (c *Candidates) Space() (tuner.Space, error) {
	j := c.Job
	space := tuner.Space{
		Batch: j.Train.Batch, Chunks: int(j.Chunks), Targets: c.targets(),
		AverageEvery: j.Averaging.Tau, ExchangeNorm: j.Optimizer.ClipNorm > 0,
		CriticalBatch: max(0, j.Train.CriticalBatch) / float64(max(1, j.Groups)), // the other groups' pipelines are in the round too
	}
	method, err := jobfile.AveragingOpen(j, max(2, int(j.Pipelines)))
	if err != nil {
		return space, fmt.Errorf("averaging: %w", err)
	}
	space.AwaitRound = method.Needs().Timing == elastic.After
	if len(space.Targets) == 0 {
		return space, &tuner.StagesError{Layers: len(c.Model.Layers), Stages: int(j.Stages)}
	}
	if j.Pipelines != job.Auto {
		space.Pipelines = []int{int(j.Pipelines)}
	}
	most := 0
	for _, t := range space.Targets {
		most = max(most, t.Devices)
	}
	space.MicroBatches = microBatches(j.Train.Batch, most)
	if j.MicroBatches != job.Auto {
		space.MicroBatches = []int{int(j.MicroBatches)}
	}
	space.Schedules = []string{j.Schedule}
	if j.Schedule == job.AutoSchedule {
		space.Schedules = synchronous()
	}
	switch n := len(j.Recompute); {
	case n == 0:
		space.Recompute = RecomputeKinds[:1]
	case j.RecomputeOpen():
		space.Recompute = RecomputeKinds
	case n == 1:
		space.Recompute = j.Recompute
	default:
		space.RecomputeByStage = j.Recompute
	}
	return space, nil
}

// checkFits refuses an open job of which no candidate fits the memory, by the search that a tuning begins with.
func (x *resolver) checkFits() {
	z, err := x.sizer(&x.Job)
	if err != nil {
		x.refuse("devices.kind", "", "%v", err)
		return
	}
	c := Candidates{Facts: x.Facts, Job: &x.Job, Sizer: z}
	space, err := c.Space()
	if err == nil {
		for i, t := range space.Targets {
			space.Targets[i].Profile = c.Guess(t, Price{FLOPs: 1e12}) // how fast devices are changes no more than which layers a stage has
		}
		err = space.Fits()
	}
	if short, is := errors.AsType[*tuner.NoFitError](err); is {
		j, n := With(&x.Job, &short.Nearest), &short.Nearest
		var memory []tuner.Memory
		for _, s := range n.Predicted.Stages {
			memory = append(memory, s.Memory)
		}
		x.refuseShort(&j, memory, &short.Shortage, fmt.Sprintf("no plan fits the memory; the nearest has %s, %s and %s: ",
			words.Count(n.Devices, "stage"), words.Count(n.Pipelines, "pipeline"), words.Count(n.MicroBatches, "micro-batch")))
	} else if err != nil {
		x.refuse("schedule", "", "%v", err)
	}
}

// synchronous are the schedules that a job may be given when it leaves the choice open: those that change its time and memory,
// and not what it computes.
func synchronous() []string {
	return slices.DeleteFunc(schedule.Names(), func(name string) bool {
		plan, _, err := schedule.Generate(name, schedule.Request{Devices: 2, MicroBatches: 4})
		return err != nil || plan.Updates() > 0
	})
}

// microBatches are the divisors of a batch that are worth a try: beyond 16 a stage the bubble is below 6% of the time, and each
// matrix product only becomes smaller.
func microBatches(batch, stages int) (all []int) {
	for m := 1; m <= min(batch, max(16*stages, 16)); m++ {
		if batch%m == 0 {
			all = append(all, m)
		}
	}
	return all
}

// targets are the ways to use the node's devices. Where neither stages nor devices are given, each number of devices that divides
// the cores is one, with the cores shared out among them.
func (c *Candidates) targets() []tuner.Target {
	cpu, layers := c.Job.Devices.CPU, len(c.Model.Layers) // of emulated devices only the threads are read
	threads := func(devices int) int {
		if cpu.Threads != job.Auto {
			return int(cpu.Threads)
		}
		return max(c.Cores/devices, 1)
	}
	var all []tuner.Target
	add := func(stages, devices int) {
		if stages <= layers {
			all = append(all, tuner.Target{Devices: stages, Threads: threads(devices)})
		}
	}
	switch given, count := int(c.Job.Stages), int(c.Job.Offered()); {
	case given > 0:
		add(given, max(count, given))
	case count > 0:
		for k := 1; k < count; k *= 2 {
			add(k, count)
		}
		add(count, count)
	default:
		most := max(c.Cores/max(int(cpu.Threads), 1), 1)
		for k := 1; k <= most; k++ {
			if most%k == 0 {
				add(k, k)
			}
		}
	}
	return all[max(0, len(all)-mostTargets):]
}

// mostTargets bounds the profiles, each of which takes a few batches. The largest numbers of devices are kept.
const mostTargets = 4

// Guess is a profile before anything was measured: times by a price model. Its memory is exact.
func (c *Candidates) Guess(t tuner.Target, price Price) *tuner.Profile {
	p, every := c.Skeleton(t), 1.0 // rounds until all has been averaged
	if method, err := jobfile.AveragingOpen(c.Job, max(2, int(c.Job.Pipelines))); err == nil {
		every = float64(method.Needs().Every())
	}
	p.Samples, p.DispatchLatency = []int{1}, price.Op
	for i := range c.Model.Layers {
		alone := layer.Alone(c.Model.Layers, i, c.size())
		f, _ := alone.Forward.Cost()
		b, _ := alone.Whole.Cost()
		each := func(flops, least float64) tuner.Curve {
			return tuner.Curve{Samples: []int{1, 2}, Values: []float64{least + flops/price.FLOPs, least + 2*flops/price.FLOPs}}
		}
		one := &p.Layers[i]
		one.Forward, one.Backward = each(f, price.Layer), each(b, 2*price.Layer)
		one.BackwardInput, one.BackwardWeight = each(b/2, price.Layer), each(b/2, price.Layer)
		one.Optimizer = price.Step / float64(len(c.Model.Layers))
		if price.Bytes > 0 {
			const vectors = 5 // parameters, gradients and the state of adam; averaging has about as many
			passes := 4 * vectors * float64(one.Parameters) / price.Bytes
			one.Average = passes / every
			one.Optimizer += passes
		}
	}
	return p
}

// Skeleton is a profile without times.
func (c *Candidates) Skeleton(t tuner.Target) *tuner.Profile {
	p := &tuner.Profile{Links: make([]tuner.Link, t.Devices-1), Sizer: c.Sizer}
	p.HostBytes, p.Fixed = c.MemoryBytes, Fixed(c.Job)
	bytes, of := Memories(c.Job, t.Devices)
	for d, in := range of {
		p.Devices = append(p.Devices, tuner.Device{
			Name: c.Device, Slowdown: c.slowdown(d), CapacityBytes: bytes[in], Shares: d - slices.Index(of, in),
		})
	}
	for i, l := range c.Model.Layers {
		_, out := layer.Ports(l, c.size())
		one := tuner.Layer{Name: layer.Name(l), OutputBytes: float64(footprint.OutputBytes(l, c.Job, c.size()))}
		one.ActivationBytes = float64(layer.Alone(c.Model.Layers, i, c.size()).Saved + 4*layer.Words(out))
		for _, param := range layer.Params(l) {
			if !param.Frozen {
				one.Parameters += int64(param.Len())
			}
		}
		p.Layers = append(p.Layers, one)
	}
	return p
}

// slowdown is how many times as long everything takes on device d as on the first: devices of a host are taken to be alike, and emulated
// ones to be as fast as the job says.
func (c *Candidates) slowdown(d int) float64 {
	given := c.Job.Devices.Emulated.FLOPs
	if c.Job.Devices.Kind != job.KindEmulated || len(given) < 2 {
		return 1
	}
	first, own := given[0], job.At(given, d)
	if first <= 0 || own <= 0 {
		return 1
	}
	return first / own
}

// size is a micro-batch of one sample.
func (c *Candidates) size() layer.Size { return footprint.Size(c.Model, c.Job, 1) }
