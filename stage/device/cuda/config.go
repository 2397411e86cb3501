package cuda

import (
	"fmt"
	"slices"
	"strings"
)

// Config says which graphics processor a device is on.
type Config struct {
	// Ordinal is the number of the processor, as the driver counts those that it shows to this process. Default 0.
	Ordinal int
	// Visible are the UUIDs of the processors that this process may use, which Ordinal then counts. Empty: CUDA_VISIBLE_DEVICES says, or all. The
	// first device that is opened decides. An instance of a divided processor (MIG) is alone: a process of CUDA sees one.
	Visible []string
	// Queues is how many streams the device has, which work beside each other (device.Queues). Default 1. Open makes one; package pick joins them.
	Queues int
	// Library is the driver's library. Default libcuda.so.1, which the loader finds.
	Library string
	// Libraries are directories with cuBLAS, cuDNN and NCCL, before those where the loader looks. Without cuBLAS our own kernels multiply, which are
	// slower; without cuDNN convolutions are products; without NCCL there are other transports.
	Libraries []string
	// WithoutBLAS, WithoutDNN and WithoutNCCL say why a library is not opened: another process found that it cannot be used. Empty: it is.
	WithoutBLAS, WithoutDNN, WithoutNCCL string
	// Opening is told the path of a library, or a name that the loader finds, before it is opened or initialised, which may not return. Nil: nobody.
	Opening func(path string)
	// MemoryBytes bounds what the devices of this process allocate for their callers on the processor, together. 0: what it has.
	MemoryBytes int64
	// OwnProducts makes our own kernels multiply, whatever there is.
	OwnProducts bool
	// OwnConvolutions makes convolutions products, whatever there is.
	OwnConvolutions bool
	// TF32 says that products and convolutions of F32 may round their operands to TF32, which matrix units multiply some eight times as fast as F32.
	TF32 bool
	// Launches is how operations are given to the processor. Default Graphs.
	Launches Launches
}

// Launches is a way to give operations to the processor.
type Launches string

// The ways. All compute the same bits.
const (
	Graphs      Launches = "graphs"      // a pass that runs again on the same memory is one launch
	Operations  Launches = "operations"  // one by one
	Synchronous Launches = "synchronous" // one by one, each waited for: a failure names its operation, and what that was given
)

// AllLaunches are the ways.
var AllLaunches = []Launches{Graphs, Operations, Synchronous}

// Validate reports what is wrong with c. Zero values stand for defaults.
func (c Config) Validate() error {
	if c.Ordinal < 0 {
		return fmt.Errorf("cuda device: number %d, expected at least 0", c.Ordinal)
	}
	if c.Launches != "" && !slices.Contains(AllLaunches, c.Launches) {
		return fmt.Errorf("cuda device: launches by %q, expected %s, %s or %s", c.Launches, Graphs, Operations, Synchronous)
	}
	if c.MemoryBytes < 0 {
		return fmt.Errorf("cuda device: %d bytes of memory, expected at least 0", c.MemoryBytes)
	}
	if divided := func(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }; len(c.Visible) > 1 && slices.ContainsFunc(c.Visible, divided) {
		return fmt.Errorf("cuda device: a process sees one instance of a divided processor (MIG) and nothing beside it, found %d processors to see: %s; "+
			"take one, or whole ones", len(c.Visible), strings.Join(c.Visible, ", "))
	}
	return nil
}
