package cpu_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cpu"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

func open(t *testing.T, c cpu.Config) *cpu.Device {
	t.Helper()
	d, err := cpu.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConforms(t *testing.T) {
	for _, threads := range []int{1, 2} {
		t.Run(fmt.Sprintf("threads=%d", threads), func(t *testing.T) {
			stagetest.Device(t, func() device.Device { return open(t, cpu.Config{Threads: threads}) })
		})
	}
}

// Every device has its own executor; nothing that they share (oneDNN's caches, OpenMP) may mix them up.
func TestDevicesComputeAtOnce(t *testing.T) {
	const devices, size, turns = 3, 96, 20
	results := make([][]float32, devices)
	var group sync.WaitGroup
	for i := range devices {
		group.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			d, err := cpu.Open(cpu.Config{Threads: 1 + i%2})
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = d.Close() }()
			m := device.Product{M: size, N: size, K: size, Accumulate: true}
			c, a, b := ramp(t, d, size*size), ramp(t, d, size*size), ramp(t, d, size*size)
			for range turns {
				d.Do(&device.MatMul{C: c, A: a, B: b, Product: m})
				d.Do(&device.Unary{Y: b, X: a, Function: device.GELU})
			}
			if err := d.Synchronize(); err != nil {
				t.Error(err)
			}
			results[i] = slices.Clone(c.F32())
		})
	}
	group.Wait()
	if !slices.Equal(results[0], results[2]) {
		t.Error("two devices with one thread each disagree")
	}
	if slices.Max(results[0]) < 1 {
		t.Error("the products are too small to tell")
	}
	for i, v := range results[1] {
		if difference := v - results[0][i]; difference > 1e-3 || difference < -1e-3 {
			t.Fatalf("element %d is %v on the device with two threads, %v with one", i, v, results[0][i])
		}
	}
}

// ramp allocates n elements between -1 and 1.
func ramp(t *testing.T, d *cpu.Device, n int) device.Mem {
	m, err := d.Alloc(device.F32, n)
	if err != nil {
		t.Error(err)
		runtime.Goexit()
	}
	for i := range m.F32() {
		m.F32()[i] = float32(i%17)/8 - 1
	}
	return m
}
