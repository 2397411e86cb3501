package job

import (
	"fmt"
	"slices"
	"time"
)

// Kinds of device of which the program knows more than the name: those that GPU and Emulated describe, and the one that is open.
const (
	KindGPU      = "gpu"
	KindEmulated = "emulated"
	KindAuto     = "auto"
)

// OwnMemory reports whether the job's devices have memory apart from the host's.
func (d *Devices) OwnMemory() bool { return d.Kind == KindGPU || d.Kind == KindEmulated }

// KeepValues reports whether the job's devices compute, so that what they hold takes memory.
func (d *Devices) KeepValues() bool { return d.Kind != KindEmulated || d.Emulated.Compute }

// InHost reports whether what the job's devices hold lies in the memory of the host.
func (d *Devices) InHost() bool { return d.KeepValues() && d.Kind != KindGPU }

// ModulesOnGPUs reports whether the job computes a user's modules on GPUs: an interpreter for each row has the GPU, and stages are in the memory of the host.
func (j *Job) ModulesOnGPUs() bool { return j.Devices.Kind == KindGPU && j.Model.Python != "" }

// At is entry i of a list with an entry for each stage or device, or the one that stands for all; the zero value of an empty
// list. Beyond the last entry it is the last: a tuning also tries more stages than the list is for.
func At[T any](list []T, i int) (value T) {
	if len(list) == 0 {
		return value
	}
	return list[min(i, len(list)-1)]
}

// Offered is how many devices a node offers to the job, as far as the job says; Auto where it does not. Emulated devices of a
// job whose stages are open are as many as a list has entries for. GPUs bound no number of stages that is given: stages may share one.
func (j *Job) Offered() Count {
	e := j.Devices.Emulated
	switch {
	case j.Devices.Kind == KindGPU && j.Stages != Auto:
		return Auto
	case j.Devices.Kind == KindGPU:
		return j.Devices.GPU.Count
	case j.Devices.Kind != KindEmulated:
		return j.Devices.CPU.Count
	case e.Count != Auto || j.Stages != Auto:
		return e.Count
	}
	for _, l := range j.lists() {
		if l.each == "devices" && l.have > 1 {
			return Count(l.have)
		}
	}
	return Auto
}

// OfferedKey is the key that says how many devices a node offers.
func (j *Job) OfferedKey() string {
	if j.Devices.Kind == KindEmulated {
		return "devices.emulated.count"
	}
	return "devices.cpu.count"
}

// given reports whether a list says anything but 0.
func given[T float64 | time.Duration](list []T) bool {
	return slices.ContainsFunc(list, func(x T) bool { return x != 0 })
}

// checkDevices checks that what is said of devices is read, and of emulated ones enough.
func (c *checker) checkDevices() {
	d, e := c.Devices, c.Devices.Emulated
	emulated := d.Kind == KindEmulated
	switch {
	case c.Has("devices.gpu") && d.Kind != KindGPU && d.Kind != KindAuto:
		c.refuse("devices.gpu", "", "devices.gpu is read by the kinds gpu and auto only; devices.kind is %s", d.Kind)
	case c.Has("devices.gpu") && c.Has("devices.cpu") && d.Kind == KindAuto:
		c.refuse("devices.kind", "gpu", "devices.gpu and devices.cpu are both given, and devices.kind auto would read one of them alone; say which by devices.kind")
	case d.GPU.TF32 && c.Precision != "f32":
		c.refuse("devices.gpu.tf32", "false", "devices.gpu.tf32 rounds products of f32, and precision is %s, in which there are none; leave one of them out", c.Precision)
	case c.Has("devices.cpu.count") && d.Kind == KindGPU:
		c.refuse("devices.cpu.count", "devices.gpu.count", "devices.cpu.count is not read by the kind gpu; devices.gpu.count says how many GPUs the job takes")
	case !emulated && c.Has("devices.emulated"):
		c.refuse("devices.emulated", "", "devices.emulated is read by the kind emulated only; devices.kind is %s", d.Kind)
	case !emulated:
	case c.Has("devices.cpu.count"):
		c.refuse("devices.cpu.count", "devices.emulated.count",
			"devices.cpu.count is read by kinds that compute; devices.kind is emulated, and devices.emulated.count says how many there are")
	case !given(e.FLOPs) && !given(e.Forward):
		c.refuse("devices.kind", "", "devices.kind is emulated and neither devices.emulated.flops nor devices.emulated.forward is set; a pass would take no time")
	case e.Compute && !given(e.FLOPs) && slices.Contains(e.Forward, 0):
		k := slices.Index(e.Forward, 0)
		c.refuse("devices.emulated.forward", "", "devices.emulated.forward is 0 for stage %d, devices.emulated.compute is true and no flops are set: "+
			"the arithmetic of that stage would have no time; give it one, or flops", k)
	case !given(e.Forward) && (given(e.Backward) || given(e.Step)):
		c.refuse("devices.emulated", "", "devices.emulated.forward is not set beside backward or step; give it, or flops alone")
	}
}

// entries is a list with an entry for each stage, or device, or one for all of them.
type entries struct {
	key, each string // "stages" or "devices"
	have      int
}

func (j *Job) lists() []entries {
	var all []entries
	for _, f := range schema.Fields {
		if f.Each != "" {
			all = append(all, entries{f.Key, f.Each + "s", f.In(j).Len()})
		}
	}
	return all
}

// EachStage lists the keys of lists that have several entries, one for each stage, and how many.
func (j *Job) EachStage() map[string]int {
	all := map[string]int{}
	for _, l := range j.lists() {
		if l.each == "stages" && l.have > 1 {
			all[l.key] = l.have
		}
	}
	return all
}

// CheckEntries reports the first list that does not have an entry for each of so many stages, or devices: its key and what is
// wrong. "" when all fit; where it is not known how many there are, 0, all do.
func (j *Job) CheckEntries(stages, devices int) (key, message string) {
	for _, l := range j.lists() {
		want, chunks := devices, ""
		if l.each == "stages" {
			if want = stages; j.Chunks > 1 {
				chunks = " (stages times chunks)"
			}
		}
		if l.have > 1 && l.have != want && want > 0 {
			return l.key, fmt.Sprintf("%s has entries for %d %s, and there are %d%s; a value alone stands for all", l.key, l.have, l.each, want, chunks)
		}
	}
	return "", ""
}
