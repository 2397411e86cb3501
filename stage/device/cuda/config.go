package cuda

import "fmt"

// Config says which graphics processor a device is on.
type Config struct {
	// Ordinal is the number of the processor, as the driver counts those that it shows to this process. Default 0.
	Ordinal int
	// Visible are the UUIDs of the processors that this process may use, which Ordinal then counts. Empty: CUDA_VISIBLE_DEVICES says, or all. The
	// first device that is opened decides.
	Visible []string
	// Queues is how many streams the device has, which work beside each other (device.Queues). Default 1. Open makes one; package pick joins them.
	Queues int
	// Library is the driver's library. Default libcuda.so.1, which the loader finds.
	Library string
	// Libraries are directories with cuBLAS and cuDNN, before those where the loader looks. Without cuBLAS our own kernels multiply, which are
	// slower; without cuDNN convolutions are products.
	Libraries []string
	// OwnProducts makes our own kernels multiply, whatever there is.
	OwnProducts bool
	// OwnConvolutions makes convolutions products, whatever there is.
	OwnConvolutions bool
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

// Validate reports what is wrong with c. Zero values stand for defaults.
func (c Config) Validate() error {
	if c.Ordinal < 0 {
		return fmt.Errorf("cuda device: number %d, expected at least 0", c.Ordinal)
	}
	if c.Launches != "" && c.Launches != Graphs && c.Launches != Operations && c.Launches != Synchronous {
		return fmt.Errorf("cuda device: launches by %q, expected %s, %s or %s", c.Launches, Graphs, Operations, Synchronous)
	}
	return nil
}
