package worker

import (
	"os"

	"github.com/prometheus/procfs"
)

// resetPeakRSS begins a new peak of the process's resident memory (proc_pid_clear_refs(5)). Where it may not, the peak goes on
// from the start of the process.
func resetPeakRSS() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// peakRSS is the most resident memory since the reset, in bytes; 0 where the system does not say.
func peakRSS() int64 {
	self, err := procfs.Self()
	if err != nil {
		return 0
	}
	status, err := self.NewStatus()
	if err != nil {
		return 0
	}
	return int64(status.VmHWM)
}
