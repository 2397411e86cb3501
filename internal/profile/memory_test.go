package profile

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestMemoryOfControlGroups: the least of a group and those above it, less what each uses and cannot give up.
func TestMemoryOfControlGroups(t *testing.T) {
	root := t.TempDir()
	put := func(group, file, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, group), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, group, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(total, available int64) {
		t.Helper()
		if most, now := groupMemory(root, "/system.slice/avgpiped.service/jobs"); most != total || now != available {
			t.Errorf("%d in all, %d now, expected %d and %d", most, now, total, available)
		}
	}
	expect(math.MaxInt64, math.MaxInt64)
	put("system.slice/avgpiped.service/jobs", "memory.max", "max\n")
	expect(math.MaxInt64, math.MaxInt64)
	put("system.slice/avgpiped.service", "memory.max", "1000\n")
	put("system.slice/avgpiped.service", "memory.current", "700\n")
	put("system.slice/avgpiped.service", "memory.stat", "anon 500\nfile 200\ninactive_file 100\nactive_file 100\n")
	expect(1000, 400)
	put("system.slice", "memory.max", "2000\n")
	put("system.slice", "memory.current", "1900\n")
	expect(1000, 100)
	put("system.slice", "memory.current", "2100\n")
	expect(1000, 1) // 0 would say that the host does not tell
	if total, available := hostMemory(); total <= 0 || available <= 0 || available > total {
		t.Errorf("this host: %d in all, %d now", total, available)
	}
}
