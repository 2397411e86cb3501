package cuda_test

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
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
	images, err := filepath.Glob(filepath.Join("kernels", "*.gz"))
	if err != nil || len(images) != 3 {
		t.Fatalf("the images are %q, expected 3: %v", images, err)
	}
	for _, name := range images {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		unpacked, err := gzip.NewReader(file)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !unpacked.ModTime.IsZero() || unpacked.Name != "" {
			t.Errorf("%s says when it was made, or of which file: make it by `make kernels`", name)
		}
		first, err := bufio.NewReader(unpacked).ReadString('\n')
		if want := "// " + hex.EncodeToString(digest.Sum(nil)) + "\n"; err != nil || first != want {
			t.Errorf("%s was compiled from %q, and the sources are %q: run `make kernels` (%v)", name, first, want, err)
		}
	}
}
