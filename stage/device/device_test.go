package device

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

func TestMeminfoAvailable(t *testing.T) {
	for data, want := range map[string]int64{
		"MemTotal:       16 kB\nMemAvailable:    7 kB\nBuffers: 1 kB\n": 7 << 10,
		"MemTotal: 16 kB\n":          math.MaxInt64,
		"MemAvailable: unknown kB\n": math.MaxInt64,
	} {
		if got := meminfo([]byte(data), "MemAvailable:"); got != want {
			t.Errorf("%q: %d bytes, want %d", data, got, want)
		}
	}
}

// TestLimitsOfControlGroupsCount: the process's own, and those around it.
func TestLimitsOfControlGroupsCount(t *testing.T) {
	root := t.TempDir()
	for group, limit := range map[string]string{"system.slice": "700\n", "system.slice/avgpiped.service": "max\n", "user.slice": "5\n"} {
		if err := os.MkdirAll(filepath.Join(root, group), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, group, "memory.max"), []byte(limit), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for groups, want := range map[string]int64{
		"4:memory:/other\n0::/system.slice/avgpiped.service\n": 700, "0::/user.slice\n": 5, "0::/\n": 1000, "4:memory:/user.slice\n": 1000,
	} {
		if got := limited(1000, root, []byte(groups)); got != want {
			t.Errorf("%q: %d bytes, want %d", groups, got, want)
		}
	}
	if HostTotal() < 1<<20 {
		t.Errorf("this host has %d bytes", HostTotal())
	}
}

func TestAllocErrorNamesBytesAskedAndAvailable(t *testing.T) {
	if HostAvailable() == math.MaxInt64 {
		envtest.Missing(t, "this system does not say how much memory is available")
	}
	err := CheckHostAlloc(F32, 1<<50)
	if err == nil || !strings.Contains(err.Error(), "4503599627370496 bytes asked for") ||
		!strings.Contains(err.Error(), "bytes of host memory available") {
		t.Errorf("error is %v", err)
	}
	if err := CheckHostAlloc(BF16, 1<<10); err != nil {
		t.Error(err)
	}
}

func TestSliceCountsInElementsAndRefusesMore(t *testing.T) {
	values := []float32{1, 2, 3, 4}
	m := NewMem(unsafe.Pointer(unsafe.SliceData(values)), 4, F32)
	if got := m.Slice(1, 2).F32(); got[0] != 2 || got[1] != 3 || len(got) != 2 {
		t.Errorf("Slice(1, 2) is %v", got)
	}
	for _, bounds := range [][2]int{{-1, 2}, {3, 2}, {0, -1}, {5, 0}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Slice(%d, %d) of 4 elements did not panic", bounds[0], bounds[1])
				}
			}()
			m.Slice(bounds[0], bounds[1])
		}()
	}
}

func TestNeedNamesOperationOperandFoundAndExpected(t *testing.T) {
	defer func() {
		want := "device: LayerNorm: mean has 4 f32, expected 3 f32"
		if got := recover(); got != want {
			t.Errorf("panic is %q, want %q", got, want)
		}
	}()
	Need("LayerNorm", "mean", NewMem(unsafe.Pointer(unsafe.SliceData(make([]float32, 4))), 4, F32), F32, 3)
}
