package main

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clockTicks is the unit of /proc/stat, a part of a second that Linux has shown to programs for as long as they can remember.
const clockTicks = 100

// busyTime is the processor time that all processes of this host have taken, and that this one has; 0 where the system does not say.
func busyTime() (all, own time.Duration) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	first, _, _ := strings.Cut(string(data), "\n")
	for i, field := range strings.Fields(first) {
		if i == 0 || i == 4 || i == 5 || i > 8 { // the name; idle, waiting for a disk; guests, which are counted already
			continue
		}
		ticks := int64(0)
		for _, digit := range field {
			ticks = 10*ticks + int64(digit-'0')
		}
		all += time.Duration(ticks) * time.Second / clockTicks
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, 0
	}
	return all, time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// others runs f and says which part of the processor time that was taken meanwhile others took: figures of a host that is not
// quiet are worth little.
func others(f func() error) (part float64, err error) {
	all, own := busyTime()
	err = f()
	allNow, ownNow := busyTime()
	if taken := allNow - all; taken > 0 {
		part = max(0, 1-float64(ownNow-own)/float64(taken))
	}
	return part, err
}
