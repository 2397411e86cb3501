package worker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

func TestLoadingCountsWhatIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	before := loading()
	if before.ReadBytes == 0 {
		envtest.Missing(t, "the system does not say what a process has read")
	}
	if _, err := os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if after := loading(); after.ReadBytes < before.ReadBytes+2<<20 || after.CPUSeconds < before.CPUSeconds {
		t.Errorf("%+v, then %+v after 2 MiB", before, after)
	}
}
