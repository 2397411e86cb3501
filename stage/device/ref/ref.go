package ref

import (
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
)

// alignment of allocations in bytes: a cache line, and the widest vector.
const alignment = 64

// Device computes in plain Go on host memory. It keeps scratch memory that grows to the largest operation seen.
type Device struct {
	device.HostMemory
	transposed []float32     // MatMul: op(B) as (K,N)
	scores     []float32     // Attention: one row of probabilities (T)
	dscores    []float32     // AttentionBackward: its gradient (T)
	wide       [10][]float32 // operands that are BF16, widened
	kernel     []float32     // convolutions: the window's weights, or their gradient
	rstd       []float32     // GroupNorm: of each sample's groups
	sums       []float64     // of columns; GroupNormBackward: of each sample's channels
	rotations  device.Rotations
}

var _ device.Device = (*Device)(nil)

// New returns a reference device.
func New() *Device { return &Device{} }

// Name implements device.Device.
func (d *Device) Name() string { return "ref (plain Go, 1 thread)" }

// Alloc implements device.Device. The memory lives as long as a Mem refers to it.
func (d *Device) Alloc(t device.Type, n int) (device.Mem, error) {
	if err := device.CheckHostAlloc(t, n); err != nil {
		return device.Mem{}, err
	}
	block := make([]byte, n*t.Bytes()+alignment)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(block))) & (alignment - 1)
	return device.NewMem(unsafe.Pointer(&block[skip]), n, t), nil
}

// Free implements device.Device. The garbage collector does the work.
func (d *Device) Free(device.Mem) {}

// Synchronize implements device.Device: every operation has finished when it returns.
func (d *Device) Synchronize() error { return nil }

// Close implements device.Device.
func (d *Device) Close() error {
	*d = Device{}
	return nil
}

// grow returns n elements of scratch, reusing the memory of s when it suffices. The content is unspecified.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
