package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/model"
)

// gpuReserve is the part of a GPU's memory that `auto` leaves: the driver's own, and what allocations of whole pages waste.
const gpuReserve = 0.05

// autoTook begins the reason for the kind of device that auto took.
const autoTook = "devices.kind auto took "

// resolveAuto resolves a job that takes the fastest kind of device: GPUs where it can run on them, else what auto was before there were any.
func resolveAuto(j *job.Job, f Facts) (*Resolution, strictyaml.Problems) {
	why := ""
	switch usable := gpu.Usable(f.GPUs); {
	case len(f.GPUs) == 0 && f.NoGPU == cuda.ErrAbsent.Error(): // nobody expects any of this program
	case f.Model.Family == model.Python && len(usable) > 0:
		why = "modules in Python compute on GPUs only where devices.kind is gpu: they were tried on cores"
	case j.Devices.CPU != (job.CPU{}):
		why = "devices.cpu is given"
	case f.NoGPU != "":
		why = f.NoGPU
	case len(usable) == 0:
		why = "this node has no GPU that jobs may use" + sick(f.GPUs)
	default:
		on := *j
		on.Devices.Kind = job.KindGPU
		found, problems := resolve(&on, f, nil)
		if len(problems) == 0 {
			found.Why = append([]string{autoTook + "gpu: this node has " + names(usable)}, found.Why...)
			return found, nil
		}
		why = "not gpu: " + problems[0].Message
	}
	found, problems := resolve(j, f, nil)
	if why != "" {
		found.Why = append([]string{autoTook + "cpu: " + why}, found.Why...)
	}
	return found, problems
}

// takeGPUs decides what a job takes of the node's GPUs. It reports whether that is there.
func (x *resolver) takeGPUs() bool {
	g, usable := &x.Job.Devices.GPU, gpu.Usable(x.GPUs)
	given, together := g.Count != job.Auto, gpu.Together(usable)
	if x.Job.ModulesOnGPUs() {
		together = len(usable) // each interpreter is a process
	}
	switch {
	case x.NoGPU != "" && (!x.Job.ModulesOnGPUs() || len(usable) == 0): // what it says is of our own kernels
		x.refuse("devices.kind", "cpu", "devices.kind is gpu: %s", x.NoGPU)
		return false
	case len(usable) == 0:
		x.refuse("devices.kind", "cpu", "devices.kind is gpu, and this node has no GPU that jobs may use%s", sick(x.GPUs))
		return false
	case int(g.Count) > len(usable):
		x.refuse("devices.gpu.count", strconv.Itoa(len(usable)), "devices.gpu.count is %d; jobs may use %s of this node%s", g.Count, names(usable), sick(x.GPUs))
		return false
	case int(g.Count) > together:
		x.refuse("devices.gpu.count", "1", "devices.gpu.count is %d; some of the GPUs of this node are instances of a divided one (MIG), and a process computes on one of "+
			"these alone: %s; %s", g.Count, names(usable), wholeOnes(usable, int(g.Count)))
		return false
	case g.Count == job.Auto:
		g.Count = job.Count(together)
	}
	if x.Job.Stages != job.Auto && g.Count > x.Job.Stages {
		if given {
			x.warn("devices.gpu.count is %d and the job has %s: it takes %s; stages: %[1]d would use them all", g.Count, words.Count(int(x.Job.Stages), "stage"),
				words.Count(int(x.Job.Stages), "GPU"))
		}
		g.Count = x.Job.Stages
	}
	if x.Job.Devices.CPU.Threads == job.Auto {
		x.Job.Devices.CPU.Threads = 1
	}
	return x.takeGPUMemory(usable)
}

// wholeOnes says how jobs get several of the GPUs, some of which are instances.
func wholeOnes(usable []gpu.GPU, wanted int) string {
	var whole []string
	for _, g := range usable {
		if g.Parent == "" {
			whole = append(whole, strconv.Itoa(g.Index))
		}
	}
	if len(whole) < wanted {
		return fmt.Sprintf("%d of them are whole, so no configuration of the daemon gives a job %d", len(whole), wanted)
	}
	return fmt.Sprintf("jobs get several where `gpus` of avgpiped.yaml names whole ones only: gpus: [%s]", strings.Join(whole, ", "))
}

// takeGPUMemory decides what the job takes of the memory of each GPU. It may be given any of them, so the smallest counts.
func (x *resolver) takeGPUMemory(usable []gpu.GPU) bool {
	memory := &x.Job.Devices.GPU.Memory
	smallest := slices.MinFunc(usable, func(a, b gpu.GPU) int { return cmp.Compare(a.MemoryBytes, b.MemoryBytes) })
	least, unit := smallest.MemoryBytes, ""
	switch given := float64(*memory); {
	case given == 0:
		*memory = job.Factor(int64((1 - gpuReserve) * float64(least)))
	case given <= 1:
		*memory = job.Factor(int64(given * float64(least)))
	case given > float64(least):
		x.refuse("devices.gpu.memory", strconv.FormatInt(least, 10), "devices.gpu.memory is %s; a job may be given any GPU of this node, and %s has %s", words.Bytes(int64(given)), smallest,
			words.Bytes(least))
		return false
	case given < 1000:
		unit = fmt.Sprintf(" (%v, and what is above 1 is bytes)", given)
	}
	contexts, whose := int64(1), "the CUDA context of a worker takes"
	if n := (x.Job.Stages + x.Job.Devices.GPU.Count - 1) / x.Job.Devices.GPU.Count; x.Job.ModulesOnGPUs() && n > 0 { // 0: it is measured how many there are
		contexts, whose = int64(n), fmt.Sprintf("on a GPU of %s each interpreter has a CUDA context, which take", words.Count(int(n), "stage"))
	}
	if got := int64(*memory); got <= contexts*footprint.ContextBytes {
		x.refuse("devices.gpu.memory", "auto", "devices.gpu.memory is %s%s; %s %s of it, and stages the rest; of a GPU of this node "+
			"there are %s", words.Bytes(got), unit, whose, words.Bytes(contexts*footprint.ContextBytes), words.Bytes(least))
		return false
	}
	return true
}

// names lists GPUs for people.
func names(all []gpu.GPU) string {
	var each []string
	for _, g := range all {
		each = append(each, g.String())
	}
	return words.Count(len(all), "GPU") + ", " + strings.Join(each, ", ")
}

// sick says which GPUs jobs may not use, and why.
func sick(all []gpu.GPU) string {
	var text strings.Builder
	for _, g := range all {
		if g.Health.Level == gpu.Sick {
			fmt.Fprintf(&text, "; %s is %s", g, g.Health)
		}
	}
	return text.String()
}

// Memories are the bytes that the devices of a job hold, of those that have memory of their own, for a plan of so many rows; and of each row, in which of
// these its stages are. GPUs are shared by rows where there are fewer. 0 bytes: the host's memory, or no bound.
func Memories(j *job.Job, rows int) (bytes []int64, of []int) {
	for r := range rows {
		of = append(of, r)
	}
	switch d := &j.Devices; d.Kind {
	case job.KindGPU:
		for r := range of {
			of[r] = d.GPU.Of(r, rows)
		}
		bytes = make([]int64, min(rows, int(d.GPU.Count)))
		for r, in := range of {
			bytes[in] = max(1, int64(d.GPU.Memory)-footprint.Contexts(j, r, rows)*footprint.ContextBytes) // 0 would be no bound
		}
	case job.KindEmulated:
		for r := range of {
			bytes = append(bytes, int64(job.At(d.Emulated.Memory, r)))
		}
	default:
		bytes = make([]int64, rows)
	}
	return bytes, of
}

// rowMemory is what each row of a plan may take: its part of a memory that rows share.
func rowMemory(j *job.Job, rows int) func(row int) int64 {
	bytes, of := Memories(j, rows)
	return func(row int) int64 {
		sharing := 0
		for _, in := range of {
			if in == of[row] {
				sharing++
			}
		}
		return bytes[of[row]] / int64(sharing)
	}
}

// GPUs is how many GPUs the job takes, all groups together.
func (s *Spec) GPUs() int {
	if s.Job.Devices.Kind != job.KindGPU {
		return 0
	}
	return s.Groups() * int(s.Job.Devices.GPU.Count)
}
