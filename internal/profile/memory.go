package profile

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// reserve is the part of the memory that no job is planned into: commits, buffers of files, other processes.
const reserve = 0.1

// cgroupRoot is where control groups of version 2 are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// hostMemory is what the host has, and what it can give now, in bytes; no more than the control groups of this process allow, as by the unit's
// MemoryMax. 0 when the host does not say.
func hostMemory() (total, available int64) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0
	}
	info, err := fs.Meminfo()
	if err != nil || info.MemTotalBytes == nil || info.MemAvailableBytes == nil {
		return 0, 0
	}
	total, available = int64(*info.MemTotalBytes), int64(*info.MemAvailableBytes)
	self, err := fs.Self()
	if err != nil {
		return total, available
	}
	groups, err := self.Cgroups()
	if err != nil {
		return total, available
	}
	for _, g := range groups {
		if g.HierarchyID == 0 { // version 2
			most, now := groupMemory(cgroupRoot, g.Path)
			total, available = min(total, most), min(available, now)
		}
	}
	return total, available
}

// groupMemory is what a control group and all above it allow, and what they allow beside what they use. The kernel gives up the pages of
// files that were not used lately before it kills.
func groupMemory(root, group string) (total, available int64) {
	total, available = math.MaxInt64, math.MaxInt64
	for group = filepath.Clean("/" + group); ; group = filepath.Dir(group) {
		dir := filepath.Join(root, group)
		if limit, ok := readNumber(filepath.Join(dir, "memory.max"), ""); ok {
			used, _ := readNumber(filepath.Join(dir, "memory.current"), "")
			files, _ := readNumber(filepath.Join(dir, "memory.stat"), "inactive_file ")
			total, available = min(total, limit), min(available, max(limit-used+files, 1))
		}
		if group == "/" {
			return total, available
		}
	}
}

// readNumber reads the number after a key at the start of a line; "max" is none.
func readNumber(path, key string) (int64, bool) {
	text, err := os.ReadFile(path)
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

// availableMemory is what this host can give to a job now, in bytes; 0 when it does not say.
func availableMemory() int64 {
	_, available := hostMemory()
	return int64((1 - reserve) * float64(available))
}

// totalMemory is all that this host has for jobs, in bytes; 0 when it does not say.
func totalMemory() int64 {
	total, _ := hostMemory()
	return total
}
