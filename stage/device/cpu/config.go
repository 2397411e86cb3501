package cpu

import (
	"fmt"
	"runtime"
	"slices"
)

// Config says which part of the processor a device may use.
type Config struct {
	// Threads is how many OpenMP threads work on one operation. Default 1: parallel pipelines keep several one-thread
	// devices busier than one device with several threads, whose operations each wait for the slowest.
	Threads int
	// Cores are the processors that Attach pins the calling thread, and with it the OpenMP threads it starts, to.
	// Default: no pinning.
	Cores []int
}

func (c Config) withDefaults() Config {
	if c.Threads == 0 {
		c.Threads = 1
	}
	c.Cores = slices.Clone(c.Cores)
	return c
}

// Validate reports what is wrong with c. Zero values stand for defaults.
func (c Config) Validate() error {
	if c.Threads < 0 || c.Threads > 1024 {
		return fmt.Errorf("cpu device: %d threads, expected 1 to 1024, or 0 for 1", c.Threads)
	}
	seen := make(map[int]bool, len(c.Cores))
	for _, core := range c.Cores {
		if core < 0 || core >= maxCores {
			return fmt.Errorf("cpu device: core %d, expected 0 to %d (this machine runs %d)", core, maxCores-1, runtime.NumCPU())
		}
		if seen[core] {
			return fmt.Errorf("cpu device: core %d is named twice in %v", core, c.Cores)
		}
		seen[core] = true
	}
	return nil
}

// maxCores is the size of the kernel's processor set as the system library has it.
const maxCores = 1024

// threads words a number of threads for Name.
func threads(n int) string {
	if n == 1 {
		return "1 thread"
	}
	return fmt.Sprintf("%d threads", n)
}
