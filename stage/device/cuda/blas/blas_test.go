//go:build cuda && cgo && linux && amd64

package blas

import (
	"strings"
	"testing"
)

func TestAMachineWithoutCuBLASSaysSo(t *testing.T) {
	libraries = []string{"libcublas.so.0"}
	err := Load([]string{"no"})
	if err == nil || !strings.Contains(err.Error(), "no cuBLAS: no/libcublas.so.0: cannot open") {
		t.Errorf("open a library that is not there: %v", err)
	}
}
