//go:build cuda && cgo && linux && amd64

package cuda

import (
	"unsafe"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device/cuda/driver"
)

// staging is page-locked memory that bytes of the host pass through, since drivers copy beside other work only from and to such memory. It is a
// ring: places count from the beginning, and what an event has passed is free again. The device's mu guards it.
type staging struct {
	ring    []byte
	handed  int // bytes
	passed  int // of them, those that nobody needs any more
	waiting []delivery
}

// delivery is bytes of the ring that the host gets when they are there.
type delivery struct {
	dst []byte
	at  int
}

// The bytes of a ring, and of what is copied at once.
const (
	ringBytes = 32 << 20
	partBytes = 8 << 20
)

func newStaging() (staging, error) {
	at, err := driver.HostAlloc(ringBytes)
	if err != nil {
		return staging{}, err
	}
	return staging{ring: unsafe.Slice((*byte)(at), ringBytes)}, nil
}

func (s *staging) close() error {
	if s.ring == nil {
		return nil
	}
	return driver.HostFree(unsafe.Pointer(unsafe.SliceData(s.ring)))
}

// reserve takes n bytes in one piece, and is false where too few are free.
func (s *staging) reserve(n int) (at int, ok bool) {
	at = s.handed
	if rest := ringBytes - at%ringBytes; rest < n {
		at += rest
	}
	if at+n-s.passed > ringBytes {
		return 0, false
	}
	s.handed = at + n
	return at, true
}

// place is n bytes of the ring.
func (s *staging) place(at, n int) []byte { return s.ring[at%ringBytes:][:n] }

// pass gives the host what lies before a place, and frees it.
func (s *staging) pass(until int) {
	delivered := 0
	for _, w := range s.waiting {
		if w.at >= until {
			break
		}
		copy(w.dst, s.place(w.at, len(w.dst)))
		delivered++
	}
	s.waiting = append(s.waiting[:0], s.waiting[delivered:]...)
	s.passed = max(s.passed, until)
}

// stage reserves bytes of the ring. Where it is full it waits for the stream.
func (d *Device) stage(n int) (at int) {
	for {
		d.mu.Lock()
		at, ok := d.staging.reserve(n)
		d.mu.Unlock()
		if ok {
			return at
		}
		_ = d.drain() // the failure is kept
	}
}

// upload copies bytes that fit the ring at once.
func (d *Device) upload(dst cu.DevicePtr, src []byte) {
	ring := d.staging.place(d.stage(len(src)), len(src))
	copy(ring, src)
	d.uploadLocked(dst, ring)
}

// download copies bytes that fit the ring at once.
func (d *Device) download(dst []byte, src cu.DevicePtr) {
	at := d.stage(len(dst))
	ring := d.staging.place(at, len(dst))
	d.downloadLocked(ring, src)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.staging.waiting = append(d.staging.waiting, delivery{dst, at})
}
