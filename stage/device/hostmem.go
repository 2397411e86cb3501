package device

import (
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/procfs"
)

// HostAvailable is how many bytes of host memory can be allocated without swapping: the kernel's estimate, lowered to what the
// process's own control group, and those around it, have left. It is math.MaxInt64 where the system does not say.
func HostAvailable() int64 {
	_, available := hostMemory()
	return available
}

// HostTotal is how many bytes of memory the host has, lowered to the limits of those control groups; 0 where the system does not say.
func HostTotal() int64 {
	total, _ := hostMemory()
	if total == math.MaxInt64 {
		return 0
	}
	return total
}

func hostMemory() (total, available int64) {
	total, available = math.MaxInt64, math.MaxInt64
	if fs, err := procfs.NewDefaultFS(); err == nil {
		info, err := fs.Meminfo()
		if err == nil && info.MemTotalBytes != nil && info.MemAvailableBytes != nil {
			total, available = int64(*info.MemTotalBytes), int64(*info.MemAvailableBytes)
		}
	}
	most, now := groupMemory("/sys/fs/cgroup", ownGroup())
	return min(total, most), min(available, now)
}

// ownGroup is the control group of this process, of version 2 (cgroups(7)).
var ownGroup = sync.OnceValue(func() string {
	if self, err := procfs.Self(); err == nil {
		groups, _ := self.Cgroups() // none: the root
		for _, g := range groups {
			if g.HierarchyID == 0 {
				return g.Path
			}
		}
	}
	return "/"
})

// groupMemory is the memory limit of a control group and of all groups around it (for example MemoryMax of the unit), and what is left of it.
// Inactive file pages count as left, since the kernel reclaims them before it kills.
func groupMemory(mounted, group string) (total, available int64) {
	total, available = math.MaxInt64, math.MaxInt64
	for dir := path.Clean("/" + group); ; dir = path.Dir(dir) {
		if limit, ok := readNumber(path.Join(mounted, dir, "memory.max"), ""); ok {
			used, _ := readNumber(path.Join(mounted, dir, "memory.current"), "")
			files, _ := readNumber(path.Join(mounted, dir, "memory.stat"), "inactive_file ")
			total, available = min(total, limit), min(available, max(limit-used+files, 0))
		}
		if dir == "/" {
			return total, available
		}
	}
}

// readNumber reads the number after a key at the start of a line; "max" is none.
func readNumber(name, key string) (int64, bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key); ok {
			n, err := strconv.ParseInt(value, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
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
