package main

import (
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// busySeconds is the processor time that all processes of this host have taken, and that this one has.
func busySeconds() (all, own float64, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return 0, 0, err
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, 0, err
	}
	c := stat.CPUTotal
	return c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal, 1e-9 * float64(usage.Utime.Nano()+usage.Stime.Nano()), nil
}

// others runs f and says which part of the processor time that was taken meanwhile others took: figures of a host that is not
// quiet are worth little.
func others(f func() error) (float64, error) {
	all, own, err := busySeconds()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	allNow, ownNow, err := busySeconds()
	return max(0, 1-(ownNow-own)/max(allNow-all, 1e-9)), err
}
