//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
)

// Once a context has failed every call is told so. Whichever comes first, of whichever device, what is kept names what was in flight on all of them.
func TestWhoeverIsToldOfAFailureFirstNamesTheOperations(t *testing.T) {
	library := cudatest.Library(t)
	host := make([]byte, 4000)
	for name, call := range map[string]func(d *cuda.Device, x, wide device.Mem, e device.Event){
		"record":   func(d *cuda.Device, _, _ device.Mem, _ device.Event) { d.Record() },
		"wait":     func(_ *cuda.Device, _, _ device.Mem, e device.Event) { _ = e.Wait() },
		"follow":   func(d *cuda.Device, _, _ device.Mem, e device.Event) { d.Follow(e) },
		"upload":   func(d *cuda.Device, x, _ device.Mem, _ device.Event) { d.Upload(x, host) },
		"download": func(d *cuda.Device, x, _ device.Mem, _ device.Event) { d.Download(host, x) },
		"free":     func(d *cuda.Device, x, _ device.Mem, _ device.Event) { d.Free(x) },
		"zeros":    func(d *cuda.Device, x, _ device.Mem, _ device.Event) { d.Do(&device.Zero{X: x}) },
		"kernel":   func(d *cuda.Device, x, _ device.Mem, _ device.Event) { d.Do(&device.Scale{X: x, A: 2}) },
		"cuBLAS": func(d *cuda.Device, _, wide device.Mem, _ device.Event) {
			d.Do(&device.MatMul{C: wide.Slice(0, 64), A: wide.Slice(64, 64), B: wide.Slice(128, 64), Product: device.Product{M: 8, N: 8, K: 8}})
		},
		"cuDNN": func(d *cuda.Device, _, wide device.Mem, _ device.Event) {
			s := device.ConvolutionShape{B: 1, Height: 4, Width: 4, In: 4, Out: 4, Kernel: 3, Stride: 1, Padding: 1}
			d.Do(&device.Convolution{Y: wide.Slice(0, 64), X: wide.Slice(64, 64), Weight: wide.Slice(128, 144), ConvolutionShape: s})
		},
		"pass": func(d *cuda.Device, x, _ device.Mem, _ device.Event) {
			p := &device.Pass{Ops: []device.Op{&device.Scale{X: x, A: 2}, &device.Scale{X: x, A: 3}}, Places: []device.Mem{x}}
			for range 3 {
				d.Replay(p)
			}
		},
		"alloc": func(d *cuda.Device, _, _ device.Mem, _ device.Event) {
			_, err := d.Alloc(device.F32, 1)
			says(t, err, "1 elements of f32: allocate memory of the device: run operations: Unknown", "one of these failed: Axpy")
		},
	} {
		library.Reset(cudatest.Memory)
		d, other := open(t, library), open(t, library)
		x, wide, y := alloc(t, d, 1000), alloc(t, d, 1000), alloc(t, other, 1000)
		e := d.Record()
		if err := d.Synchronize(); err != nil {
			t.Fatal(err)
		}
		other.Do(&device.Axpy{Y: y, A: 2, X: y})
		library.Lose(cudatest.Unknown)
		t.Log(name)
		call(d, x, wide, e)
		for _, one := range []*cuda.Device{d, other} {
			says(t, one.Synchronize(), "fibers", "): run operations: Unknown; one of these failed: ", "Axpy")
		}
		_, _ = d.Close(), other.Close()
	}
}

// The launches of a pass that is captured for its second run, and the launch of its third, are told as well.
func TestAPassThatCannotBeCapturedNamesTheOperations(t *testing.T) {
	library := cudatest.Library(t)
	for runs := range 3 {
		library.Reset(cudatest.Memory)
		d := open(t, library)
		x := alloc(t, d, 1000)
		p := &device.Pass{Ops: []device.Op{&device.Scale{X: x, A: 2}, &device.Scale{X: x, A: 3}}, Places: []device.Mem{x}}
		for range runs {
			d.Replay(p)
		}
		if err := d.Synchronize(); err != nil {
			t.Fatal(err)
		}
		d.Do(&device.Axpy{Y: x, A: 2, X: x})
		library.Lose(cudatest.Unknown)
		d.Replay(p)
		says(t, d.Synchronize(), "): run operations: Unknown; one of these failed: Axpy")
		_ = d.Close()
	}
}

// A call that fails where the context is whole is told as it is, and no other device has its failure.
func TestAFailureOfACallIsItsOwn(t *testing.T) {
	library := cudatest.Library(t)
	d, other := open(t, library), open(t, library)
	x := alloc(t, d, 1000)
	d.Do(&device.Scale{X: x, A: 2})
	d.Upload(x.Slice(0, 0), nil)
	at := device.NewSymbol(device.F32, 1000) // no memory of the device
	d.Do(&device.Zero{X: at})
	says(t, d.Synchronize(), "): zero: InvalidValue")
	for _, one := range []*cuda.Device{d, other} {
		if err := one.Synchronize(); err != nil {
			t.Errorf("a call of the other device, or one before, failed: %v", err)
		}
		if err := one.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Synchronous devices on one processor run one operation at a time, and have the failure of the one that failed.
func TestSynchronousDevicesNameTheOperationOfAnother(t *testing.T) {
	library := cudatest.Library(t)
	c := cuda.Config{Library: library.Path(), Launches: cuda.Synchronous}
	one, other := openWith(t, c), openWith(t, c)
	x, y := alloc(t, one, 1000), alloc(t, other, 1000)
	library.Trap("axpy", cudatest.IllegalAddress)
	one.Do(&device.Axpy{Y: x, A: 3, X: x})
	other.Do(&device.Scale{X: y, A: 2})
	for _, d := range []*cuda.Device{one, other} {
		says(t, d.Synchronize(), "run Axpy: Y 1000 f32, A=3, X 1000 f32: IllegalAddress")
	}
	_, _ = one.Close(), other.Close()
}
