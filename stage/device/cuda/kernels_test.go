package cuda_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheKernelsAreThoseOfTheSources(t *testing.T) {
	digest := sha256.New()
	for _, pattern := range []string{"*.cu", "*.cuh"} {
		files, err := filepath.Glob(filepath.Join("kernels", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			digest.Write(text)
		}
	}
	compiled, err := os.ReadFile("kernels/kernels.ptx")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(compiled), "\n")
	if want := "// " + hex.EncodeToString(digest.Sum(nil)); first != want {
		t.Errorf("kernels.ptx was compiled from %s, and the sources are %s: run `make kernels`", first, want)
	}
}
