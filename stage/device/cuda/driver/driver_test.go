//go:build cuda && cgo && linux && amd64

package driver_test

import (
	"compress/gzip"
	"io"
	"os"
	"strings"
	"testing"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/device/cuda/driver"
)

// The test binary holds gorgonia.org/cu, which ends the process where cuInit fails.
func TestAProgramStartsWithoutADriver(t *testing.T) {
	if _, err := cu.NumDevices(); err == nil {
		t.Error("a driver that is not loaded has devices")
	}
	err := driver.Load("no/libcuda.so", nil, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "no CUDA device: no/libcuda.so: not found") {
		t.Errorf("load a library that is not there: %v", err)
	}
	t.Log(err)
}

func TestAnOldDriverIsRefused(t *testing.T) {
	library := cudatest.Library(t)
	library.Version(11040)
	err := driver.Load(library.Path(), nil, nil)
	if err == nil || !strings.Contains(err.Error(), "is a driver for CUDA 11.4, expected 11.8 or above; update the driver") {
		t.Errorf("load an old driver: %v", err)
	}
}

// The least version of a driver is that which reads this PTX.
func TestTheKernelsAreOfTheVersionThatDriversRead(t *testing.T) {
	packed, err := os.Open("../kernels/kernels.ptx.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	ptx, err := io.ReadAll(unpacked)
	if err != nil || !strings.Contains(string(ptx), "\n.version 7.8\n") {
		t.Errorf("the kernels are not of PTX 7.8, which drivers for CUDA 11.8 read: %v", err)
	}
}

func TestADriverThatLacksFunctionsIsRefused(t *testing.T) {
	err := driver.Load("libm.so.6", nil, nil)
	if err == nil || !strings.Contains(err.Error(), "libm.so.6 lacks") || !strings.Contains(err.Error(), "cuMemAlloc_v2") ||
		!strings.Contains(err.Error(), "update the driver") {
		t.Errorf("load the library of mathematical functions: %v", err)
	}
}
