package process

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
)

func TestTheKernelsKillsForMemoryAreCounted(t *testing.T) {
	files := oomFiles("/cg", []procfs.Cgroup{
		{HierarchyID: 4, Controllers: []string{"memory"}, Path: "/a/b"}, {HierarchyID: 3, Controllers: []string{"cpuset"}, Path: "/"}, {Path: "/c"},
	})
	if want := []string{"/cg/memory/a/b/memory.oom_control", "/cg/c/memory.events"}; !slices.Equal(files, want) {
		t.Errorf("looked for in %v, want %v", files, want)
	}
	for _, text := range []string{"low 0\noom 2\noom_kill 1\noom_group_kill 0\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"} {
		file := filepath.Join(t.TempDir(), "events")
		write := func(text string) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(text)
		n, ok := readOOM(file)
		c := OOM{file, n}
		if n != 1 || !ok || c.Cause("") != "" {
			t.Errorf("%q is read as %d, %v; out of memory: %q", text, n, ok, c.Cause(""))
		}
		write(strings.Replace(text, "oom_kill 1", "oom_kill 2", 1))
		if said := c.Cause(""); said != "out of memory (cgroup): " {
			t.Errorf("after another kill: %q", said)
		}
	}
	if said := (OOM{}).Cause("fatal error: runtime: cannot allocate memory"); !strings.Contains(said, "ulimit -v") {
		t.Errorf("a limit of the process: %q", said)
	}
}
