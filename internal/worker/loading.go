package worker

import (
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// loading is what this process has read and computed so far; zeros where the system does not say.
func loading() *control.Loading {
	out := &control.Loading{}
	if self, err := procfs.Self(); err == nil {
		if io, err := self.IO(); err == nil {
			out.ReadBytes = io.RChar + io.ReadBytes // through calls, and of mapped files
		}
	}
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) == nil {
		out.CPUSeconds = (time.Duration(used.Utime.Nano()) + time.Duration(used.Stime.Nano())).Seconds()
	}
	return out
}
