//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// open opens a device that multiplies by cuBLAS, and has cuDNN.
func open(t *testing.T, library cudatest.Driver) *cuda.Device {
	t.Helper()
	return openWith(t, cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}})
}

func openWith(t *testing.T, c cuda.Config) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConforms(t *testing.T) {
	library := cudatest.Library(t)
	stagetest.Device(t, func() device.Device { return open(t, library) })
	if held := library.Held(); held != 0 {
		t.Errorf("closed devices hold %d bytes", held)
	}
}

func TestConformsWithoutCuBLAS(t *testing.T) {
	c := cuda.Config{Library: cudatest.Library(t).Path(), OwnProducts: true}
	stagetest.Device(t, func() device.Device { return openWith(t, c) }, "products", "products of BF16", "nothing allocates",
		"LSTM", "nothing recurrent allocates", "convolutions", "nothing for images allocates")
}

func TestConformsWithoutCuDNN(t *testing.T) {
	library := cudatest.Library(t)
	c := cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}, OwnConvolutions: true}
	stagetest.Device(t, func() device.Device { return openWith(t, c) }, "convolutions", "a convolution sees its window", "nothing for images allocates")
}

func TestStagesPredict(t *testing.T) {
	d := open(t, cudatest.Library(t))
	stagetest.Predictions(t, d)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
