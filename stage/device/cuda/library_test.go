//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"errors"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
)

// What cuDNN does not take is products; so is what it takes and then refuses, and what one product computes as it is.
func TestCuDNNComputesWhatItTakes(t *testing.T) {
	library := cudatest.Library(t)
	c := cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}}
	d := openWith(t, c)
	says(t, errors.New(d.Name()), "products by cuBLAS 12.4, convolutions by cuDNN 9.1")
	for kernel, want := range map[int]int{1: 0, 3: 1, 5: 0, 7: 0} {
		before := library.Calls("cudnnConvolutionForward")
		d.Do(&device.Convolution{Y: alloc(t, d, 64*4), X: alloc(t, d, 64*3), Weight: alloc(t, d, 12*kernel*kernel), ConvolutionShape: device.ConvolutionShape{
			B: 1, Height: 8, Width: 8, In: 3, Out: 4, Kernel: kernel, Stride: 1, Padding: kernel / 2,
		}})
		if got := library.Calls("cudnnConvolutionForward") - before; got != want {
			t.Errorf("a window of %d pixels: cuDNN computes %d convolutions, want %d", kernel, got, want)
		}
	}
	if err := d.Synchronize(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	c.OwnConvolutions = true
	d = openWith(t, c)
	says(t, errors.New(d.Name()), "convolutions by products, as configured")
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
