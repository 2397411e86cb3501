// Package emulated is a device that spends time and memory instead of computing: every operation checks its operands as
// other devices do and adds what it would cost. So a pipeline of many devices runs in real time on a machine that has none of
// them (docs/emulation.md).
//
// No element is stored: memory takes address space and nothing else, what is uploaded is dropped, and what is read is 0. Losses
// and gradient norms are therefore 0, which is finite.
//
// Like a graphics processor the device has a queue: an operation begins when the one before it has ended, whatever its
// caller does meanwhile, and Record and Synchronize sleep until the last one ends. Moments are computed, not measured, so that a sleep that
// ends late does not make the next operation late.
package emulated

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/pace"
	"github.com/avgpipe/avgpipe/stage/device"
)

// Device implements device.Device.
type Device struct {
	config Config
	until  time.Time // when everything so far has ended
	// fixed: the pass in progress has its time from the configuration.
	fixed  bool
	spent  time.Duration // by everything so far
	held   int64
	peak   int64
	blocks map[unsafe.Pointer]int64 // bytes of what Alloc gave out
}

// reserved is the address space of so many bytes.
func reserved(bytes int64) uintptr { return uintptr(max(bytes, 1)) }

var (
	_ device.Device   = (*Device)(nil)
	_ device.Threaded = (*Device)(nil)
	_ device.Emulator = (*Device)(nil)
)

// Open returns a device.
func Open(c Config) (*Device, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Device{config: c, blocks: map[unsafe.Pointer]int64{}}, nil
}

// Name implements device.Device.
func (d *Device) Name() string {
	var parts []string
	add := func(given bool, format string, args ...any) {
		if given {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	c := d.config
	add(len(c.Stages) > 0, "times given")
	add(c.FLOPs > 0, "%.3g FLOP/s", c.FLOPs)
	add(c.Bandwidth > 0, "%.3g bytes/s", c.Bandwidth)
	add(c.Launch > 0, "%v a launch", c.Launch)
	add(c.Memory > 0, "%d bytes", c.Memory)
	if parts == nil {
		parts = []string{"no time, no limit"}
	}
	return "emulated (" + strings.Join(parts, ", ") + ")"
}

// Host implements device.Device: there is nothing to see.
func (d *Device) Host() bool { return false }

// Attach implements device.Threaded.
func (d *Device) Attach() error { return pace.Tighten() }

// Spent is the time of everything so far, whether it has passed or not.
func (d *Device) Spent() time.Duration { return d.spent }

// Held is how many bytes are allocated, and Peak the most that ever were.
func (d *Device) Held() int64 { return d.held }

// Peak is the most bytes that were ever allocated at once.
func (d *Device) Peak() int64 { return d.peak }

// Alloc implements device.Device: it counts, and reserves addresses that nobody can touch.
func (d *Device) Alloc(t device.Type, n int) (device.Mem, error) {
	size := t.Bytes()
	if n < 0 || n > math.MaxInt64/2/size {
		return device.Mem{}, fmt.Errorf("device: allocate %d elements of %v: expected 0 to %d", n, t, math.MaxInt64/2/size)
	}
	asked := int64(n) * int64(size)
	if limit := d.config.Memory; limit > 0 && asked > limit-d.held {
		return device.Mem{}, fmt.Errorf("device: allocate %d elements of %v: %d bytes asked for, %d bytes of %d available on the emulated device, "+
			"%d allocations hold the others; use fewer pipelines, smaller micro-batches or more stages",
			n, t, asked, limit-d.held, limit, len(d.blocks))
	}
	at, err := unix.MmapPtr(-1, 0, nil, reserved(asked), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return device.Mem{}, fmt.Errorf("device: allocate %d elements of %v: reserve %d bytes of address space: %w", n, t, asked, err)
	}
	d.blocks[at] = asked
	d.held += asked
	d.peak = max(d.peak, d.held)
	return device.NewMem(at, n, t), nil
}

// Free implements device.Device.
func (d *Device) Free(m device.Mem) { d.release(m.Pointer()) }

func (d *Device) release(at unsafe.Pointer) {
	bytes, ok := d.blocks[at]
	if !ok {
		return
	}
	delete(d.blocks, at)
	d.held -= bytes
	if err := unix.MunmapPtr(at, reserved(bytes)); err != nil {
		panic(fmt.Sprintf("device: free %d bytes that Alloc reserved: %v", bytes, err))
	}
}

// Upload implements device.Device: the bytes move and are dropped.
func (d *Device) Upload(dst device.Mem, src []byte) {
	device.CheckLength("Upload", src, dst)
	d.move(dst.Bytes())
}

// Download implements device.Device: zeros arrive. It does not wait, since they depend on nothing.
func (d *Device) Download(dst []byte, src device.Mem) {
	device.CheckLength("Download", dst, src)
	d.move(src.Bytes())
	clear(dst)
}

// Begin implements device.Emulator.
func (d *Device) Begin(w device.Work) {
	if t := d.config.fixed(w); t > 0 {
		d.fixed = false // of the pass before
		d.spend(t)
		d.fixed = true
	}
}

// Record implements device.Device: it returns when the moment has come, so that a stage's time shows where the stage is driven.
func (d *Device) Record() device.Event {
	_ = d.Synchronize() // it never fails
	return nil
}

// Synchronize implements device.Device.
func (d *Device) Synchronize() error {
	d.fixed = false
	pace.Until(d.until)
	return nil
}

// Close implements device.Device.
func (d *Device) Close() error {
	for at := range d.blocks {
		d.release(at)
	}
	return nil
}

// grace is how late an operation may come and still begin when the one before it ended: the host needs that long to hand it over.
const grace = 100 * time.Microsecond

// spend queues an operation.
func (d *Device) spend(t time.Duration) {
	if d.fixed {
		return
	}
	if now := time.Now(); now.Sub(d.until) > grace {
		d.until = now
	}
	d.until = d.until.Add(t)
	d.spent += t
}

// Has implements device.Device: it spends time on whatever there is.
func (d *Device) Has(device.Op) bool { return true }

// Do implements device.Device: the operation takes what it costs.
func (d *Device) Do(op device.Op) {
	device.Check(op)
	flops, bytes := device.Cost(op)
	d.spend(d.config.Launch + over(flops, d.config.FLOPs) + over(float64(bytes), d.config.Bandwidth))
}

// move queues the transfer of so many bytes.
func (d *Device) move(bytes int) {
	d.spend(d.config.Launch + over(float64(bytes), d.config.Bandwidth))
}

// longest bounds the time of an operation: nobody waits that long, and sums of some are still times.
const longest = 365 * 24 * time.Hour

// over is the time of an amount at a rate a second; none at rate 0.
func over(amount, rate float64) time.Duration {
	if rate == 0 {
		return 0
	}
	return time.Duration(min(amount/rate*float64(time.Second), float64(longest)))
}
