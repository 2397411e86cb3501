//go:build cuda && cgo && linux && amd64

package nvml

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/gpu"
)

// A program that binds at once starts without the library, as one of a hardened toolchain does.
func TestAProgramThatBindsAtOnceStarts(t *testing.T) {
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAHostWithoutTheLibrarySaysSo$", "-test.v")
	again.Env = append(os.Environ(), "LD_BIND_NOW=1")
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A function that the library lacks fails, and does not end the process.
func TestARealLibraryThatLacksFunctions(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		envtest.Missing(t, "cc is not installed")
	}
	library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-o", library, "testdata/driver.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	from, err := openAt(library)
	if err != nil {
		t.Fatal(err)
	}
	all := sample(t, from)
	if len(all) != 2 || all[0].UUID != "GPU-one" || all[1].Name != "Plain" || all[0].MemoryBytes != 8<<30 || *all[0].Readings.MemoryFreeBytes != 7<<30 ||
		*all[0].Readings.PowerWatts != 99 || all[0].Readings.Lost != "" || all[1].Readings.PowerWatts != nil || all[1].Readings.Lost != gpu.FellOff {
		t.Errorf("processors are %+v", all)
	}
	if _, err := from.WaitXID(1); err == nil || !strings.Contains(err.Error(), "no XIDs") {
		t.Errorf("wait for an XID: %v", err)
	}
	if err := from.Close(); err != nil {
		t.Error(err)
	}
}
