//go:build cuda && cgo && linux && amd64

package driver_test

import (
	"strings"
	"testing"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device/cuda/driver"
)

// The test binary holds gorgonia.org/cu, which ends the process where cuInit fails.
func TestAProgramStartsWithoutADriver(t *testing.T) {
	if _, err := cu.NumDevices(); err == nil {
		t.Error("a driver that is not loaded has devices")
	}
	err := driver.Load("no/libcuda.so")
	if err == nil || !strings.HasPrefix(err.Error(), "no CUDA device: no/libcuda.so: cannot open shared object file") {
		t.Errorf("load a library that is not there: %v", err)
	}
	t.Log(err)
}

func TestADriverThatLacksFunctionsIsRefused(t *testing.T) {
	err := driver.Load("libm.so.6")
	if err == nil || !strings.Contains(err.Error(), "libm.so.6 lacks") || !strings.Contains(err.Error(), "cuMemAlloc_v2") ||
		!strings.Contains(err.Error(), "update the driver") {
		t.Errorf("load the library of mathematical functions: %v", err)
	}
}
