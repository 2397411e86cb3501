package emulated

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/stage/device"
)

// nothing is a device that keeps no values: operations check their operands, and what is read is 0.
type nothing struct{}

func (nothing) Name() string { return "nothing" }
func (nothing) Host() bool   { return false }

// Alloc reserves addresses that nobody can touch.
func (nothing) Alloc(t device.Type, n int) (device.Mem, error) {
	bytes := n * t.Bytes()
	at, err := unix.MmapPtr(-1, 0, nil, reserved(bytes), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return device.Mem{}, fmt.Errorf("device: allocate %d elements of %v: reserve %d bytes of address space: %w", n, t, bytes, err)
	}
	return device.NewMem(at, n, t), nil
}

func (nothing) Free(m device.Mem) {
	if err := unix.MunmapPtr(m.Pointer(), reserved(m.Bytes())); err != nil {
		panic(fmt.Sprintf("device: free %d bytes that Alloc reserved: %v", m.Bytes(), err))
	}
}

// reserved is the address space of so many bytes.
func reserved(bytes int) uintptr { return uintptr(max(bytes, 1)) }

func (nothing) Upload(device.Mem, []byte)         {}
func (nothing) Download(dst []byte, _ device.Mem) { clear(dst) }
func (nothing) Has(device.Op) bool                { return true }
func (nothing) Do(op device.Op)                   { device.Check(op) }
func (nothing) Record() device.Event              { return nil }
func (nothing) Synchronize() error                { return nil }
func (nothing) Close() error                      { return nil }
