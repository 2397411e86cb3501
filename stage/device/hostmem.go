package device

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
)

// HostAvailable is how many bytes of host memory can be allocated without swapping: the kernel's estimate, lowered to
// what the process's own control group has left. It is math.MaxInt64 where the system does not say.
func HostAvailable() int64 {
	available := int64(math.MaxInt64)
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		available = meminfoAvailable(data)
	}
	limit, errLimit := readInt("/sys/fs/cgroup/memory.max")
	used, errUsed := readInt("/sys/fs/cgroup/memory.current")
	if errLimit == nil && errUsed == nil {
		available = min(available, max(limit-used, 0))
	}
	return available
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

// meminfoAvailable reads the MemAvailable line of /proc/meminfo, which is in KiB.
func meminfoAvailable(data []byte) int64 {
	for line := range bytes.Lines(data) {
		value, found := bytes.CutPrefix(line, []byte("MemAvailable:"))
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
