package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A new benchmark is held against its bars without anybody having to remember it, unless it wants a graphics processor.
func TestCheckRunsEveryBenchmark(t *testing.T) {
	script, err := os.ReadFile("../../check.sh")
	if err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob("../../*/main.go")
	if err != nil || len(programs) == 0 {
		t.Fatalf("benchmarks: %v, %v", programs, err)
	}
	for _, path := range programs {
		if name := filepath.Base(filepath.Dir(path)); name != "gpu" && !strings.Contains(string(script), "\nbench "+name+" ") {
			t.Errorf("check.sh does not run bench/%s", name)
		}
	}
}
