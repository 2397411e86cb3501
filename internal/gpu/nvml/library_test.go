//go:build cuda && cgo && linux

package nvml

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/gpu"
)

// The mock cannot say what the dynamic linker does with a function that a library lacks: it ends the process.
func TestARealLibraryThatLacksFunctions(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		envtest.Missing(t, "cc is not installed")
	}
	library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-o", library, "testdata/driver.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	from, err := open(nvml.New(nvml.WithLibraryPath(library)))
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
