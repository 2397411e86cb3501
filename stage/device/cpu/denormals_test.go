//go:build onednn && cgo && linux && amd64

package cpu_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cpu"
)

// Neither oneDNN nor OpenMP nor our kernels change what a thread does with denormals.
func TestOperationsLeaveDenormalsAlone(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, threads := range []int{1, 2} {
		d := open(t, cpu.Config{Threads: threads})
		newSample(t, d).run(d)
		m := device.Product{M: 64, N: 64, K: 64}
		d.Do(&device.MatMul{C: ramp(t, d, 64*64), A: ramp(t, d, 64*64), B: ramp(t, d, 64*64), Product: m})
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if !cpu.Denormals(true) {
			t.Fatalf("after operations on %d threads the thread takes denormals for 0", threads)
		}
	}
}

// Whoever has set a thread to take denormals for 0, an attached device computes with them, as plain Go does.
func TestAttachedDevicesKeepDenormals(t *testing.T) {
	const n = 100_000 // enough to be cut over two threads
	for _, threads := range []int{1, 2} {
		halves := make(chan []float32)
		go func() {
			runtime.LockOSThread() // ends locked, as an executor does
			cpu.Denormals(false)
			d := open(t, cpu.Config{Threads: threads})
			defer func() { _ = d.Close() }()
			if err := d.Attach(); err != nil {
				t.Error(err)
			}
			x, err := d.Alloc(device.F32, n)
			if err != nil {
				t.Error(err)
			}
			for i := range x.F32() {
				x.F32()[i] = 1.5e-38
			}
			d.Do(&device.Scale{X: x, A: 0.5})
			halves <- slices.Clone(x.F32())
		}()
		for i, v := range <-halves {
			if v != 0.75e-38 {
				t.Fatalf("with %d threads, half of element %d, 1.5e-38, is %v", threads, i, v)
			}
		}
	}
}
