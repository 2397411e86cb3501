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
	expect(1000, 0)
	if HostTotal() < 1<<20 || HostAvailable() > HostTotal() {
		t.Errorf("this host: %d in all, %d now", HostTotal(), HostAvailable())
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

func TestChecksNameOperationOperandFoundAndExpected(t *testing.T) {
	floats := func(n int) Mem { return NewMem(unsafe.Pointer(unsafe.SliceData(make([]float32, n))), n, F32) }
	norm := Norm{Y: floats(6), X: floats(6), Mean: floats(4), Bias: floats(2), Rstd: floats(3), Weight: floats(2)}
	attention := Attention{AttentionShape: AttentionShape{B: 1, T: 1, H: 0, S: 1}}
	masked := Attention{
		Out: floats(1), Q: floats(1), K: floats(1), V: floats(1), AttentionShape: AttentionShape{B: 1, T: 1, H: 1, S: 1, Mask: floats(1)},
	}
	for _, c := range []struct {
		op   Op
		want string
	}{
		{&norm, "device: Norm: mean has 4 f32, expected 3 f32"},
		{&Mul{X: floats(3)}, "device: Mul: y is absent, expected 0 f32"},
		{&attention, "device: Attention: H is 0, expected at least 1"},
		{&masked, "device: Attention: mask has 1 f32, expected 1 i32"},
	} {
		func() {
			defer func() {
				if got := recover(); got != c.want {
					t.Errorf("panic is %q, want %q", got, c.want)
				}
			}()
			Check(c.op)
		}()
	}
}
