package profile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// subject is the job that is tuned, with what is known of it before anything is measured.
type subject struct {
	request control.TuneRequest
	model   *model.Model
	cores   int
	memory  int64         // bytes that the host has for jobs; 0 when it does not say
	device  device.Device // the first of the job's, closed with the subject; nil of GPUs
	name    string        // what the devices are
	sizer   *footprint.Sizer
}

// newSubject opens a device, which close closes. Of GPUs it opens none: an estimate must do without one that is free.
func newSubject(r control.TuneRequest, trials *worker.Trials) (*subject, error) {
	s := &subject{request: r, model: trials.Model(), cores: r.NodeCores, memory: spec.HostMemory()}
	if n := len(r.Cores); n > 0 {
		s.cores = n
	}
	var err error
	if r.Spec.Job.Devices.Kind == job.KindGPU {
		s.name = gpuNames(r.GPUs)
		s.sizer, err = spec.NewSizer(s.model, &s.request.Spec.Job)
		return s, err
	}
	if s.device, err = trials.OpenDevice(r.Spec.Job.Devices); err != nil {
		return nil, err
	}
	s.name = s.device.Name()
	s.sizer = footprint.New(s.model, &s.request.Spec.Job, s.device)
	return s, nil
}

func (s *subject) close() error {
	if s.device == nil {
		return nil
	}
	return s.device.Close()
}

// gpuNames says what GPUs of these kinds are, with the version of the driver where the kernel says it. Others of a kind are as fast.
func gpuNames(all []gpu.GPU) string {
	var names []string
	for _, g := range all {
		names = append(names, strings.TrimSpace(g.Name+" "+g.ComputeCapability))
	}
	text, _ := os.ReadFile("/proc/driver/nvidia/version") // none where the driver is another
	version, _, _ := strings.Cut(string(text), "\n")
	return fmt.Sprintf("gpu (%s; driver %s)", strings.Join(names, ", "), cmp.Or(version, "unknown"))
}

// digest names all that a plan depends on. Two jobs with one digest get one plan.
func (s *subject) digest() (string, error) {
	j := s.request.Spec.Job
	text, err := json.Marshal(map[string]any{
		"report": tuner.ReportVersion, "family": s.model.Family, "model": s.model.Config(), "task": s.model.Task,
		"batch": j.Train.Batch, "sequence": s.size().T, "precision": j.Precision, "boundary": j.BoundaryPrecision, "optimizer": j.Optimizer.Name,
		"momentum": j.Optimizer.Momentum > 0, "clip": j.Optimizer.ClipNorm > 0,
		"averaging": []any{j.Averaging.Method, j.Averaging.Pull, j.Averaging.Tau},
		"stages":    j.Stages, "pipelines": j.Pipelines, "micro_batches": j.MicroBatches, "schedule": j.Schedule, "chunks": j.Chunks,
		"recompute": j.Recompute, "devices": j.Devices,
		"device": s.name, "cores": s.cores, "system": processors(), "memory": device.HostTotal(),
	})
	if err != nil {
		return "", fmt.Errorf("digest of the job: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// processors is the kind of processor that this program runs on: its model where the host names it.
func processors() string {
	kind := runtime.GOOS + "/" + runtime.GOARCH
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if all, err := fs.CPUInfo(); err == nil && len(all) > 0 && all[0].ModelName != "" {
			kind += " " + all[0].ModelName
		}
	}
	return kind
}

// space is what the job leaves open. Its targets have no profile yet.
func (s *subject) space() (tuner.Space, error) {
	j := s.request.Spec.Job
	space := tuner.Space{
		Batch: j.Train.Batch, Chunks: int(j.Chunks), Targets: s.targets(),
		AverageEvery: j.Averaging.Tau, AwaitRound: elastic.PullRule(j.Averaging.Pull) == elastic.PullNew, ExchangeNorm: j.Optimizer.ClipNorm > 0,
	}
	if len(space.Targets) == 0 {
		return space, &tuner.StagesError{Layers: len(s.model.Layers), Stages: int(j.Stages)}
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
		space.Recompute = spec.RecomputeKinds[:1]
	case j.RecomputeOpen():
		space.Recompute = spec.RecomputeKinds
	case n == 1:
		space.Recompute = j.Recompute
	default:
		space.RecomputeByStage = j.Recompute
	}
	return space, nil
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
func (s *subject) targets() []tuner.Target {
	cpu, layers := s.request.Spec.Job.Devices.CPU, len(s.model.Layers) // of emulated devices only the threads are read
	threads := func(devices int) int {
		if cpu.Threads != job.Auto {
			return int(cpu.Threads)
		}
		return max(s.cores/devices, 1)
	}
	var all []tuner.Target
	add := func(stages, devices int) {
		if stages <= layers {
			all = append(all, tuner.Target{Devices: stages, Threads: threads(devices)})
		}
	}
	switch given, count := int(s.request.Spec.Job.Stages), int(s.request.Spec.Job.Offered()); {
	case given > 0:
		add(given, max(count, given))
	case count > 0:
		for k := 1; k < count; k *= 2 {
			add(k, count)
		}
		add(count, count)
	default:
		most := max(s.cores/max(int(cpu.Threads), 1), 1)
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

// sizes are the two or three numbers of samples that are measured: the smallest and the largest micro-batch of the space, and
// the one nearest to the middle of them, by ratio. Fewer micro-batches than stages cannot fill a pipeline, so what so large ones
// take is left to the line through the others.
func (s *subject) sizes(space tuner.Space) []int {
	stages := space.Targets[0].Devices
	for _, t := range space.Targets {
		stages = min(stages, t.Devices)
	}
	var all []int
	for _, m := range space.MicroBatches {
		if m >= stages || m == space.MicroBatches[len(space.MicroBatches)-1] {
			all = append(all, space.Batch/m)
		}
	}
	slices.Sort(all)
	first, last := all[0], all[len(all)-1]
	off := func(n int) float64 { return math.Abs(math.Log(float64(n*n) / float64(first*last))) }
	middle := first
	for _, n := range all {
		if off(n) <= off(middle)*(1+1e-9) { // of two equally near the larger
			middle = n
		}
	}
	return slices.Compact([]int{first, middle, last})
}

// size is a micro-batch of one sample.
func (s *subject) size() layer.Size { return footprint.Size(s.model, &s.request.Spec.Job, 1) }

// guess is a profile before anything was measured: times by a price model. Its memory is exact.
func (s *subject) guess(t tuner.Target) *tuner.Profile {
	price := s.assumed(t)
	p := s.skeleton(t)
	p.Samples, p.DispatchLatency = []int{1}, price.op
	for i := range s.model.Layers {
		alone := layer.Alone(s.model.Layers, i, s.size())
		f, _ := alone.Forward.Cost()
		b, _ := alone.Whole.Cost()
		each := func(flops, least float64) tuner.Curve {
			return tuner.Curve{Samples: []int{1, 2}, Values: []float64{least + flops/price.flops, least + 2*flops/price.flops}}
		}
		one := &p.Layers[i]
		one.Forward, one.Backward = each(f, price.layer), each(b, 2*price.layer)
		one.BackwardInput, one.BackwardWeight = each(b/2, price.layer), each(b/2, price.layer)
		one.Optimizer = price.step / float64(len(s.model.Layers))
		if price.bytes > 0 {
			const vectors = 5 // parameters, gradients and the state of adam; averaging has about as many
			one.Average = 4 * vectors * float64(one.Parameters) / price.bytes
			one.Optimizer += one.Average
		}
	}
	return p
}

// skeleton is a profile without times.
func (s *subject) skeleton(t tuner.Target) *tuner.Profile {
	p := &tuner.Profile{Links: make([]tuner.Link, t.Devices-1), Sizer: s.sizer}
	p.HostBytes, p.Fixed = s.memory, spec.Fixed(&s.request.Spec.Job)
	bytes, of := spec.Memories(&s.request.Spec.Job, t.Devices)
	for d, in := range of {
		p.Devices = append(p.Devices, tuner.Device{
			Name: s.name, Slowdown: s.slowdown(d), CapacityBytes: bytes[in], Shares: d - slices.Index(of, in),
		})
	}
	for i, l := range s.model.Layers {
		_, out := layer.Ports(l, s.size())
		one := tuner.Layer{Name: layer.Name(l), OutputBytes: float64(footprint.OutputBytes(l, &s.request.Spec.Job, s.size()))}
		one.ActivationBytes = float64(layer.Alone(s.model.Layers, i, s.size()).Saved + 4*layer.Words(out))
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
func (s *subject) slowdown(d int) float64 {
	given := s.request.Spec.Job.Devices.Emulated.FLOPs
	if s.request.Spec.Job.Devices.Kind != job.KindEmulated || len(given) < 2 {
		return 1
	}
	first, own := given[0], job.At(given, d)
	if first <= 0 || own <= 0 {
		return 1
	}
	return first / own
}
