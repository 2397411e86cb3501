//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// says fails unless err has all of the words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	t.Log(err)
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error is %v, expected it to say %q", err, w)
		}
	}
}

func alloc(t *testing.T, d device.Device, n int) device.Mem {
	t.Helper()
	m, err := d.Alloc(device.F32, n)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAnotherProcessorThanThereIsIsRefused(t *testing.T) {
	library := cudatest.Library(t)
	_, err := cuda.Open(cuda.Config{Library: library.Path(), Ordinal: 3})
	says(t, err, "graphics processor 3", "the driver shows 1")
	_, err = cuda.Open(cuda.Config{Library: library.Path(), Ordinal: -1})
	says(t, err, "number -1, expected at least 0")
}

func TestAProcessKeepsItsDriver(t *testing.T) {
	library := cudatest.Library(t)
	if err := open(t, library).Close(); err != nil {
		t.Fatal(err)
	}
	_, err := cuda.Open(cuda.Config{Library: "another/libcuda.so"})
	says(t, err, "load the CUDA driver another/libcuda.so: this process has loaded "+library.Path())
}

func TestMemoryThatIsNotThereIsNamed(t *testing.T) {
	library := cudatest.Library(t)
	const memory = 2<<20 + 32<<20 // cuBLAS works in 32 MiB
	library.Reset(memory)
	d := open(t, library)
	whole := alloc(t, d, 1<<18)
	_, err := d.Alloc(device.F32, 1<<18)
	says(t, err, "262144 elements of f32: allocate memory", fmt.Sprintf("1048576 bytes asked for, %d of %d bytes available", memory-library.Held(), memory),
		"1 allocations of 1048576 bytes held here")
	d.Free(whole)
	d.Free(alloc(t, d, 1<<18)) // the device goes on
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// All devices of a process on a processor have one limit; what is freed, and what a device had that was closed, may be taken again.
func TestALimitOfMemoryHolds(t *testing.T) {
	library := cudatest.Library(t)
	c := cuda.Config{Library: library.Path(), MemoryBytes: 2 << 20}
	one, other := openWith(t, c), openWith(t, c)
	held := alloc(t, one, 1<<18)
	kept := alloc(t, other, 1<<17)
	_, err := other.Alloc(device.F32, 1<<18)
	says(t, err, "262144 elements of f32: allocate memory of the device: 1048576 bytes asked for, 1572864 taken by this process, 2097152 is its limit (devices.gpu.memory")
	one.Free(held)
	alloc(t, one, 1<<18)
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	alloc(t, other, 1<<18)
	other.Free(kept)
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

func TestAProcessSeesOneInstanceOfADividedProcessor(t *testing.T) {
	_, err := cuda.Open(cuda.Config{Library: cudatest.Library(t).Path(), Visible: []string{"MIG-1", "MIG-2"}})
	says(t, err, "a process sees one instance of a divided processor (MIG)", "found 2 processors to see: MIG-1, MIG-2")
}

func TestAKernelThatTrapsIsReported(t *testing.T) {
	library := cudatest.Library(t)
	d := open(t, library)
	x := alloc(t, d, 1000)
	d.Do(&device.Scale{X: x, A: 2})
	if err := d.Synchronize(); err != nil {
		t.Fatal(err)
	}
	library.Trap("axpy", cudatest.IllegalAddress)
	d.Do(&device.Axpy{Y: x, A: 1, X: x})
	d.Do(&device.Scale{X: x, A: 2})
	for range 2 {
		says(t, device.Wait(d.Record()), "no GPU, fibers", "IllegalAddress", "one of these failed: Axpy, Scale", "(AVGPIPED_CUDA_LAUNCHES=synchronous says which)")
	}
	says(t, d.Synchronize(), "IllegalAddress")
	says(t, d.Synchronize(), "IllegalAddress") // a context does not recover
	_, err := cuda.Open(cuda.Config{Library: library.Path()})
	says(t, err, "make a stream: IllegalAddress", "has failed for another device of this process; it is whole when all have closed")
	_ = d.Close()
	library.Trap("none", 0)
	if err := open(t, library).Close(); err != nil {
		t.Errorf("a device that is opened after one that failed: %v", err)
	}
}

func TestASynchronousDeviceNamesTheOperation(t *testing.T) {
	library := cudatest.Library(t)
	d := openWith(t, cuda.Config{Library: library.Path(), Launches: cuda.Synchronous})
	x := alloc(t, d, 1000)
	library.Trap("axpy", cudatest.IllegalAddress)
	d.Do(&device.Scale{X: x, A: 2})
	d.Do(&device.Axpy{Y: x, A: 3, X: x})
	d.Do(&device.Scale{X: x, A: 2})
	says(t, device.Wait(d.Record()), "no GPU, fibers", "run Axpy: Y 1000 f32, A=3, X 1000 f32: IllegalAddress")
	_ = d.Close()
	_, err := cuda.Open(cuda.Config{Library: library.Path(), Launches: "slow"})
	says(t, err, `launches by "slow", expected graphs, operations or synchronous`)
}

func TestALostDeviceIsReported(t *testing.T) {
	library := cudatest.Library(t)
	d := open(t, library)
	x := alloc(t, d, 1000)
	e := d.Record()
	library.Lose(cudatest.Unknown)
	says(t, e.Wait(), "Unknown", "none, all had ended")
	d.Do(&device.Scale{X: x, A: 2})
	_, err := d.Alloc(device.F32, 1)
	says(t, err, "1 elements of f32: allocate memory", "Unknown")
	says(t, d.Synchronize(), "Unknown")
	if d.Close() == nil {
		t.Error("a lost device closes without an error")
	}
	library.Reset(cudatest.Memory)
	if err := open(t, library).Close(); err != nil {
		t.Errorf("a device that is whole again: %v", err)
	}
}

func TestAPassIsFewLaunches(t *testing.T) {
	library := cudatest.Library(t)
	d := open(t, library)
	x := alloc(t, d, 1000)
	before := library.Calls("cuLaunchKernel")
	d.Do(&device.Zero{X: x})
	d.Do(&device.Scale{X: x, A: 2})
	d.Do(&device.AdamStep{P: x, M: x, V: x, G: x})
	if got := library.Calls("cuLaunchKernel") - before; got != 2 {
		t.Errorf("three operations launch %d kernels, want 2: zeros are no kernel, and a step is one", got)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestHeadsThatFitNoTileAreNotHad(t *testing.T) {
	d := open(t, cudatest.Library(t))
	for s, want := range map[int]bool{1: true, 1024: true, 1025: false} {
		a := device.AttentionShape{B: 1, T: 1, H: 1, S: s}
		for _, op := range []device.Op{
			&device.Attention{AttentionShape: a}, &device.AttentionBackward{AttentionShape: a},
			&device.CachedAttention{H: 1, CacheShape: device.CacheShape{S: s}},
		} {
			if d.Has(op) != want {
				t.Errorf("the device has %T of %d elements a head: %v, want %v", op, s, !want, want)
			}
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// What a stage takes of a device's memory is what its price says, with what each queue has beside operands, and nothing more while it trains.
func TestAStageTakesItsPrice(t *testing.T) {
	library := cudatest.Library(t)
	for _, kind := range []string{"gpt2", "llama"} {
		for _, compute := range []device.Type{device.F32, device.BF16} {
			d := device.NewQueues([]device.Queue{open(t, library), open(t, library)})
			before := library.Held()
			p := pipeline(t, d, kind, nil, stagetest.PipelineConfig{Compute: compute})
			price, err := stage.Config{
				Device: d, Model: p.Model, Range: p.Ranges[0], Count: 1, Samples: samples, Sequence: sequence, Slots: micros, Seed: p.Seed, Compute: compute,
			}.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			if price.Workspace == 0 { // means of the backward of attention, tables of rotations, sums in float32
				t.Errorf("%s in %v: the price has no workspace", kind, compute)
			}
			for i := range uint64(3) {
				if took := int64(library.Held() - before); took != price.Total()+price.Workspace {
					t.Fatalf("%s in %v: %d bytes are allocated after %d batches, the price is %d and %d of workspace", kind, compute, took, i, price.Total(), price.Workspace)
				}
				step(t, p, i)
			}
		}
	}
}

// A stage whose operations have no memory beside their operands is not made.
func TestMemoryBesideOperandsIsMadeWithTheStage(t *testing.T) {
	library := cudatest.Library(t)
	d := open(t, library)
	whole := device.NewSymbol(device.BF16, 1<<20)
	err := d.Prepare([]device.Op{&device.MatMul{
		C: whole, A: whole, B: whole, Product: device.Product{M: 1 << 10, N: 1 << 10, K: 1 << 10, Bias: device.NewSymbol(device.F32, 1<<10)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	library.Reset(library.Held())
	err = d.Prepare([]device.Op{&device.Rotate{Y: whole, X: whole, Rotation: device.Rotation{B: 1, T: 1 << 10, Heads: 1, S: 1 << 10, Theta: 1e4}}})
	says(t, err, "a table of rotary positions", "1048576 elements of f32", "4194304 bytes asked for, 0 of")
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
