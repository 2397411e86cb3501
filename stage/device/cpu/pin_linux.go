package cpu

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// pin binds the calling OS thread to cores. Threads that it starts inherit the binding.
func pin(cores []int) error {
	if len(cores) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, core := range cores {
		set.Set(core)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		var allowed unix.CPUSet
		if unix.SchedGetaffinity(0, &allowed) == nil {
			return fmt.Errorf("cpu device: pin to cores %v: %w (this process may use %v)", cores, err, members(&allowed))
		}
		return fmt.Errorf("cpu device: pin to cores %v: %w", cores, err)
	}
	return nil
}

// members lists the processors of a set.
func members(set *unix.CPUSet) []int {
	var cores []int
	for core := range maxCores {
		if set.IsSet(core) {
			cores = append(cores, core)
		}
	}
	return cores
}
