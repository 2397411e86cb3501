package profile

import (
	"os"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/plancache"
	"github.com/avgpipe/avgpipe/tuner"
)

func TestAPlanUnderAnotherNameIsNotTaken(t *testing.T) {
	dir, other := t.TempDir(), strings.Repeat("cd", 32)
	r := &tuner.Report{Version: tuner.ReportVersion, Digest: strings.Repeat("ab", 32)}
	if err := writeCache(dir, r); err != nil {
		t.Fatal(err)
	}
	if found, err := readCache(dir, r.Digest); err != nil || found == nil {
		t.Fatalf("%v, %v", found, err)
	}
	if found, err := readCache(dir, other); found != nil || err != nil {
		t.Errorf("another digest finds %v, %v", found, err)
	}
	if err := os.Rename(plancache.Tuned(dir, r.Digest), plancache.Tuned(dir, other)); err != nil {
		t.Fatal(err)
	}
	if _, err := readCache(dir, other); err == nil || !strings.Contains(err.Error(), "abababab") {
		t.Errorf("error is %v", err)
	}
}
