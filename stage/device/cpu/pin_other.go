//go:build !linux

package cpu

import "fmt"

// pin binds the calling OS thread to cores, which only Linux can.
func pin(cores []int) error {
	if len(cores) == 0 {
		return nil
	}
	return fmt.Errorf("cpu device: pin to cores %v: only Linux can; leave the cores unset", cores)
}
