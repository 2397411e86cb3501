package device

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
)

// HostAvailable is how many bytes of host memory can be allocated without swapping: the kernel's estimate, lowered to
// what the process's own control group has left. It is math.MaxInt64 where the system does not say.
func HostAvailable() int64 {
	available := int64(math.MaxInt64)
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		available = meminfo(data, "MemAvailable:")
	}
	limit, errLimit := readInt("/sys/fs/cgroup/memory.max")
	used, errUsed := readInt("/sys/fs/cgroup/memory.current")
	if errLimit == nil && errUsed == nil {
		available = min(available, max(limit-used, 0))
	}
	return available
}

// HostTotal is how many bytes of memory the host has, lowered to the limits of the process's own control group and of those around
// it; 0 where the system does not say.
func HostTotal() int64 {
	total := int64(0)
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		if total = meminfo(data, "MemTotal:"); total == math.MaxInt64 {
			total = 0
		}
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return total
	}
	return limited(total, "/sys/fs/cgroup", groups)
}

// limited lowers a number of bytes to the limits of a control group, as /proc/PID/cgroup names it (cgroups(7)), and those around it.
func limited(total int64, mounted string, groups []byte) int64 {
	for line := range bytes.Lines(groups) {
		own, found := bytes.CutPrefix(bytes.TrimSpace(line), []byte("0::"))
		if !found {
			continue
		}
		for dir := path.Clean("/" + string(own)); ; dir = path.Dir(dir) {
			if limit, err := readInt(path.Join(mounted, dir, "memory.max")); err == nil && (total == 0 || limit < total) {
				total = limit
			}
			if dir == "/" {
				break
			}
		}
	}
	return total
}

// hugePage is the size of the pages that devices ask of the system for allocations that are at least as large.
const hugePage = 2 << 20

// HostPages is how much of the host's memory an allocation of so many bytes takes: whole huge pages, from one on.
func HostPages(bytes int64) int64 {
	if bytes < hugePage {
		return bytes
	}
	return (bytes + hugePage - 1) / hugePage * hugePage
}

// CheckHostAlloc returns the error of Device.Alloc on host memory: a negative count, or more bytes than are available.
func CheckHostAlloc(t Type, n int) error {
	size := t.Bytes()
	if n < 0 || n > math.MaxInt64/2/size {
		return fmt.Errorf("device: allocate %d elements of %v: expected 0 to %d", n, t, math.MaxInt64/2/size)
	}
	asked := int64(n) * int64(size)
	if asked < 1<<20 { // reading the system's figures costs more than a small allocation
		return nil
	}
	if available := HostAvailable(); asked > available {
		return fmt.Errorf("device: allocate %d elements of %v: %d bytes asked for, %d bytes of host memory available; "+
			"use fewer pipelines, smaller micro-batches or more stages", n, t, asked, available)
	}
	return nil
}

// meminfo reads a line of /proc/meminfo, which is in KiB.
func meminfo(data []byte, key string) int64 {
	for line := range bytes.Lines(data) {
		value, found := bytes.CutPrefix(line, []byte(key))
		if !found {
			continue
		}
		value = bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))
		if kib, err := strconv.ParseInt(string(value), 10, 64); err == nil {
			return kib << 10
		}
	}
	return math.MaxInt64
}

// readInt reads a file that holds one number; a control group without a limit says "max", which is an error here.
func readInt(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64)
}
