package worker

import (
	"bytes"
	"os"
	"strconv"
)

// resetPeakRSS begins a new peak of the process's resident memory (proc_pid_clear_refs(5)). Where it may not, the peak goes on
// from the start of the process.
func resetPeakRSS() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// peakRSS is the most resident memory since the reset, in bytes; 0 where the system does not say.
func peakRSS() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		value, found := bytes.CutPrefix(line, []byte("VmHWM:"))
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 10, 64)
		if err != nil {
			return 0
		}
		return kib << 10
	}
	return 0
}
