//go:build cuda && cgo && linux && amd64

package blas

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
)

func TestAMachineWithoutCuBLASSaysSo(t *testing.T) {
	libraries = []string{"libcublas.so.0"}
	dir := t.TempDir()
	_, err := Load(library.Search{Directories: []string{dir}})
	if err == nil || err.Error() != "no cuBLAS: libcublas.so.0: not found in "+dir+", the places where the loader looks" {
		t.Errorf("open a library that is not there: %v", err)
	}
}

func TestVersionsAreNamedAsTheyAreReleased(t *testing.T) {
	for version, want := range map[int]string{11605: "11.6.5", 12103: "11.11.3", 120401: "12.4.1", 130002: "13.0.2"} {
		if got := name(version); got != want {
			t.Errorf("version %d is %q, expected %q", version, got, want)
		}
	}
}
