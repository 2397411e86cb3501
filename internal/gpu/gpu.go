// Package gpu knows the graphics processors of a node: which there are, which of them the daemon may use, what they report and how healthy they
// are. It asks no driver itself: a Source does.
package gpu

import (
	"cmp"
	"fmt"
	"slices"
)

// GPU is a graphics processor that computes, or an instance of one that is divided (MIG).
type GPU struct {
	Index  int    `json:"index"`  // as the driver and nvidia-smi count; an instance has that of its processor
	UUID   string `json:"uuid"`   // CUDA_VISIBLE_DEVICES takes it; GPU-... or, of an instance, MIG-...
	Parent string `json:"parent"` // of an instance: the UUID of its processor; else empty
	Name   string `json:"name"`
	PCIBus string `json:"pci_bus"` // domain:bus:device.function
	// MemoryBytes is all of its memory, that which the driver keeps for itself included.
	MemoryBytes       int64  `json:"memory_bytes"`
	ComputeCapability string `json:"compute_capability"` // "9.0"; empty where the driver does not say
	Health            Health `json:"health"`
}

// Together is how many of these one process can compute on: all, where each is a whole processor; else one. A process of CUDA sees one instance of
// a divided processor, and no whole ones beside it (NVIDIA's MIG user guide, "CUDA device enumeration").
func Together(all []GPU) int {
	if slices.ContainsFunc(all, func(g GPU) bool { return g.Parent != "" }) {
		return 1
	}
	return len(all)
}

// String names the processor for people.
func (g GPU) String() string { return fmt.Sprintf("GPU %d (%s, %s)", g.Index, g.Name, g.UUID) }

// Level is how healthy a processor is. A sick one takes no stages, all others do.
type Level string

// The levels, from the best.
const (
	Healthy  Level = "healthy"
	Unknown  Level = "unknown"  // nothing tells how it is
	Degraded Level = "degraded" // it computes, but slowly, or it should be reset soon
	Sick     Level = "sick"     // what it computes is lost or may be wrong
)

var severity = map[Level]int{Healthy: 0, Unknown: 1, Degraded: 2, Sick: 3}

// Health says how a processor is, and why.
type Health struct {
	Level   Level    `json:"level"`
	Reasons []Reason `json:"reasons"` // the gravest first; none where it is healthy
}

// Reason is one cause of a level. docs/operations.md says what to do about each code.
type Reason struct {
	Code  string `json:"code"`
	Level Level  `json:"level"` // that it leads to
	Text  string `json:"text"`
}

// healthOf is the health that these reasons make.
func healthOf(reasons []Reason) Health {
	all := slices.Clone(reasons)
	slices.SortStableFunc(all, func(a, b Reason) int { return cmp.Compare(severity[b.Level], severity[a.Level]) })
	if len(all) == 0 {
		return Health{Level: Healthy, Reasons: []Reason{}}
	}
	return Health{Level: all[0].Level, Reasons: all}
}

// String says how the processor is, and the gravest reason.
func (h Health) String() string {
	if len(h.Reasons) == 0 {
		return string(h.Level)
	}
	return fmt.Sprintf("%s: %s", h.Level, h.Reasons[0].Text)
}

// Usable are those that may be given stages: all that are not sick, in order.
func Usable(all []GPU) []GPU {
	return slices.DeleteFunc(slices.Clone(all), func(g GPU) bool { return g.Health.Level == Sick })
}
