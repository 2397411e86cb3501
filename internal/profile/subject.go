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

	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/tuner"
)

// subject is the job that is tuned, with what is known of it before anything is measured.
type subject struct {
	spec.Candidates
	request control.TuneRequest
	device  device.Device // the first of the job's, closed with the subject; nil of GPUs
	weighs  string        // what pipelines are weighed by, where the job leaves that to what was measured; ""
}

// newSubject opens a device, which close closes. Of GPUs it opens none: an estimate must do without one that is free.
func newSubject(r control.TuneRequest, trials *worker.Trials) (*subject, error) {
	s := &subject{request: r}
	s.weighs = takeCritical(&s.request)
	s.Candidates = spec.Candidates{Job: &s.request.Spec.Job, Facts: spec.Facts{Model: trials.Model(), Cores: r.NodeCores, MemoryBytes: spec.HostMemory()}}
	if n := len(r.Cores); n > 0 {
		s.Cores = n
	}
	var err error
	if r.Spec.Job.Devices.Kind == job.KindGPU {
		s.Device = gpuNames(r.GPUs)
		s.Sizer, err = spec.NewSizer(s.Model, s.Job)
		return s, err
	}
	if s.device, err = trials.OpenDevice(r.Spec.Job.Devices); err != nil {
		return nil, err
	}
	s.Device = s.device.Name()
	s.Sizer = footprint.New(s.Model, s.Job, s.device, s.device)
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
		"report": tuner.ReportVersion, "family": s.Model.Family, "model": s.Model.Config(), "task": s.Model.Task,
		"batch": j.Train.Batch, "critical": j.Train.CriticalBatch, "groups": j.Groups, "sequence": s.size().T, "precision": j.Precision, "boundary": j.BoundaryPrecision, "optimizer": j.Optimizer.Name,
		"momentum": j.Optimizer.Momentum > 0, "clip": j.Optimizer.ClipNorm > 0,
		"averaging": []any{j.Averaging.Method, j.Averaging.Pull, j.Averaging.Tau},
		"stages":    j.Stages, "pipelines": j.Pipelines, "micro_batches": j.MicroBatches, "schedule": j.Schedule, "chunks": j.Chunks,
		"recompute": j.Recompute, "devices": j.Devices,
		"device": s.Device, "cores": s.Cores, "system": processors(), "memory": device.HostTotal(),
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
func (s *subject) size() layer.Size { return footprint.Size(s.Model, s.Job, 1) }
