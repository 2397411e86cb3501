//go:build cuda && cgo && linux && amd64

package cuda

import (
	"errors"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device/cuda/driver"
)

// AllocHost implements device.HostAllocator. The last device on the processor to close frees the memory.
func (d *Device) AllocHost(n int) []byte {
	d.enter()
	defer d.leave()
	at, err := driver.HostAlloc(max(n, 1))
	if err != nil { // other memory serves as well, by way of the ring
		return nil
	}
	p := d.processor
	p.mu.Lock()
	defer p.mu.Unlock()
	p.locked[at] = n
	return unsafe.Slice((*byte)(at), n)
}

// isLocked reports whether bytes begin where memory of AllocHost does, so that the processor copies them itself.
func (p *processor) isLocked(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(b) > 0 && len(b) <= p.locked[unsafe.Pointer(unsafe.SliceData(b))]
}

// unlock frees the page-locked memory.
func (p *processor) unlock() (err error) {
	for at := range p.locked {
		err = errors.Join(err, driver.HostFree(at))
	}
	return err
}

// uploadLocked copies page-locked bytes, which stay as they are until an event after this has passed.
func (d *Device) uploadLocked(dst cu.DevicePtr, src []byte) {
	d.check("upload", cu.MemcpyHtoDAsync(dst, unsafe.Pointer(unsafe.SliceData(src)), int64(len(src)), d.stream))
}

// downloadLocked copies to page-locked bytes, which are there when an event after this has passed.
func (d *Device) downloadLocked(dst []byte, src cu.DevicePtr) {
	d.check("download", cu.MemcpyDtoHAsync(unsafe.Pointer(unsafe.SliceData(dst)), src, int64(len(dst)), d.stream))
}
