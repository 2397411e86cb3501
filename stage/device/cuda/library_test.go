//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/program"
)

// What cuDNN does not take is products; so is what it takes and then refuses, and what one product computes as it is.
func TestCuDNNComputesWhatItTakes(t *testing.T) {
	library := cudatest.Library(t)
	c := cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}}
	d := openWith(t, c)
	says(t, errors.New(d.Name()), "products by cuBLAS 12.4.1, convolutions by cuDNN 9.1")
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

// A library that loads and does not work costs speed and not the job. A process keeps the cuBLAS that it has found, so another one looks.
func TestACuBLASThatOpensNoHandleLeavesProductsToOurKernels(t *testing.T) {
	driver := cudatest.Library(t)
	if dir := os.Getenv("AVGPIPED_TEST_LIBRARIES"); dir != "" {
		c := cuda.Config{Library: driver.Path(), Libraries: []string{dir}}
		path := filepath.Join(dir, "libcublas.so.12")
		if f := cuda.Probe(cuda.BLAS, c, true); f.Path != path || f.Error != "open a handle of cuBLAS, "+path+": status 7, CUBLAS_STATUS_INVALID_VALUE" || f.Absent {
			t.Errorf("found %+v", f)
		}
		d := openWith(t, c)
		says(t, errors.New(d.Name()), "products by our own kernels, which are slower: open a handle of cuBLAS, "+path+": status 7, CUBLAS_STATUS_INVALID_VALUE")
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "cublas.c")
	const text = `
int cublasCreate_v2(void **to) { *to = 0; return 7; }
int cublasDestroy_v2() { return 1; }
int cublasGetVersion_v2() { return 1; }
int cublasSetStream_v2() { return 1; }
int cublasSetWorkspace_v2() { return 1; }
int cublasGemmEx() { return 1; }
`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libcublas.so.12"), source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), "AVGPIPED_TEST_LIBRARIES="+dir)
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A pass with convolutions is captured with the calls of whatever computes them.
func TestConvolutionsInGraphsComputeTheSameBits(t *testing.T) {
	library := cudatest.Library(t)
	shape := device.ConvolutionShape{B: 2, Height: 6, Width: 5, In: 3, Out: 4, Kernel: 3, Stride: 2, Padding: 1}
	const inputs, outputs, weights = 2 * 6 * 5 * 3, 2 * 3 * 3 * 4, 4 * 3 * 9
	b := program.NewBuilder()
	x, weight, y := b.External(0, device.F32, inputs), b.External(1, device.F32, weights), b.External(2, device.F32, outputs)
	dx, dweight := b.External(3, device.F32, inputs), b.External(4, device.F32, weights)
	b.Do(&device.Convolution{Y: y, X: x, Weight: weight, ConvolutionShape: shape})
	b.Do(&device.ConvolutionBackward{DX: dx, DY: y, Weight: weight, ConvolutionShape: shape})
	b.Do(&device.ConvolutionBackwardWeight{DWeight: dweight, DY: y, X: x, ConvolutionShape: shape})
	pass := b.Passes().Forward
	run := func(c cuda.Config) (results [][]float32) {
		c.Library, c.Libraries = library.Path(), []string{library.Directory()}
		d := openWith(t, c)
		m := program.Memory{External: []device.Mem{alloc(t, d, inputs), alloc(t, d, weights), alloc(t, d, outputs), alloc(t, d, inputs), alloc(t, d, weights)}}
		for turn := range 4 {
			for i, n := range []int{inputs, weights} {
				values := make([]float32, n)
				for j := range values {
					values[j] = float32((j*(turn+3)+i)%17) / 16
				}
				d.Upload(m.External[i], device.FloatBytes(values))
			}
			pass.Run(d, &m, device.Args{})
		}
		for _, mem := range m.External[2:] {
			got := make([]float32, mem.Len())
			if err := device.Read(d, device.FloatBytes(got), mem); err != nil {
				t.Fatal(err)
			}
			results = append(results, got)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		return results
	}
	for _, own := range []bool{false, true} {
		want := run(cuda.Config{OwnConvolutions: own, Launches: cuda.Operations})
		before := library.Calls("cuGraphLaunch")
		if got := run(cuda.Config{OwnConvolutions: own}); !reflect.DeepEqual(got, want) {
			t.Errorf("own convolutions %v: a graph computes %v, want %v", own, got, want)
		}
		if library.Calls("cuGraphLaunch") == before {
			t.Error("nothing was captured")
		}
	}
}
