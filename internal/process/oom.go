package process

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// cgroupRoot is where control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// OOM counts the processes that the kernel has killed for want of memory in one control group.
type OOM struct {
	file   string // "" where there is none that can be read
	before uint64 // when the process was started or adopted
}

// WatchOOM notes the count of the control group that a living process is in, of version 2 or 1.
func WatchOOM(pid int) OOM {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return OOM{}
	}
	groups, _ := p.Cgroups() // none: nothing is known
	for _, file := range oomFiles(cgroupRoot, groups) {
		if n, ok := readOOM(file); ok {
			return OOM{file, n}
		}
	}
	return OOM{}
}

// oomFiles are where the count may be (cgroups(7)).
func oomFiles(root string, groups []procfs.Cgroup) (files []string) {
	for _, g := range groups {
		if g.HierarchyID == 0 {
			files = append(files, filepath.Join(root, g.Path, "memory.events"))
		} else if slices.Contains(g.Controllers, "memory") {
			files = append(files, filepath.Join(root, "memory", g.Path, "memory.oom_control"))
		}
	}
	return files
}

// readOOM reads the line "oom_kill N".
func readOOM(file string) (uint64, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			v, err := strconv.ParseUint(n, 10, 64)
			return v, err == nil
		}
	}
	return 0, false
}

// grew reports whether the kernel has killed a process of the group since.
func (c OOM) grew() bool {
	now, ok := readOOM(c.file)
	return ok && now > c.before
}

// Cause says that a process ended for want of memory, by the count and the end of its log; "" when nothing says so.
func (c OOM) Cause(tail string) string {
	switch {
	case c.grew():
		return "out of memory (cgroup): "
	case strings.Contains(tail, "out of memory") || strings.Contains(tail, "cannot allocate memory"):
		return "out of memory (a limit of the process, as of ulimit -v, or the host's): "
	}
	return ""
}
