package worker

import (
	"sync/atomic"

	"github.com/avgpipe/avgpipe/stage/device"
)

// meter counts what one stage allocates on a device. The device's executor allocates; others may read the counts.
type meter struct {
	device.Device
	now, most atomic.Int64 // bytes
}

// Unwrap is the device itself: see device.Of.
func (m *meter) Unwrap() device.Device { return m.Device }

// Alloc implements device.Device.
func (m *meter) Alloc(t device.Type, n int) (device.Mem, error) {
	mem, err := m.Device.Alloc(t, n)
	if err == nil {
		m.most.Store(max(m.most.Load(), m.now.Add(int64(mem.Bytes()))))
	}
	return mem, err
}

// Free implements device.Device.
func (m *meter) Free(mem device.Mem) {
	m.now.Add(-int64(mem.Bytes()))
	m.Device.Free(mem)
}
