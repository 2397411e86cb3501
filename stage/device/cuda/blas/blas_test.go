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
