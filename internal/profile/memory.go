package profile

import (
	"bytes"
	"os"
	"strconv"
)

// reserve is the part of the host's available memory that a job is not planned into: commits, buffers of files, other processes.
const reserve = 0.1

// availableMemory is what this host can give to a job now, in bytes; 0 when it does not say.
func availableMemory() int64 { return int64((1 - reserve) * float64(readMeminfo("MemAvailable:"))) }

// totalMemory is all that this host has, in bytes; 0 when it does not say.
func totalMemory() int64 { return readMeminfo("MemTotal:") }

func readMeminfo(key string) int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return parseMeminfo(data, key)
}

// parseMeminfo reads a line of /proc/meminfo (proc_meminfo(5)), in bytes; 0 when it is not there.
func parseMeminfo(meminfo []byte, key string) int64 {
	for line := range bytes.Lines(meminfo) {
		value, found := bytes.CutPrefix(line, []byte(key))
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 10, 64)
		if err != nil || kib < 0 || kib > 1<<53 {
			return 0
		}
		return kib << 10
	}
	return 0
}
