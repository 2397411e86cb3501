// Package emulated is a device that spends time: every operation checks its operands as other devices do and adds what it would
// cost. So a pipeline of many devices runs in real time on a machine that has none of them (docs/emulation.md).
//
// Open makes one that computes nothing. No element is stored: memory takes address space and nothing else, what is uploaded is
// dropped, and what is read is 0. Losses and gradient norms are therefore 0, which is finite.
//
// Over makes one that also computes, on a device of this machine: what it is told to do is done at once, and takes the time that was
// dictated all the same. Where this machine needs longer than that, the device is late, and Lag says by how much.
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

	"github.com/avgpipe/avgpipe/internal/pace"
	"github.com/avgpipe/avgpipe/stage/device"
)

// Device implements device.Device.
type Device struct {
	config Config
	on     device.Device // holds the values and computes them
	clock  clock
	held   int64
	peak   int64
	blocks map[unsafe.Pointer]device.Mem // what Alloc gave out
}

var (
	_ device.Device   = (*Device)(nil)
	_ device.Threaded = (*Device)(nil)
	_ device.Emulator = (*Device)(nil)
	_ device.Waiter   = (*Device)(nil)
)

// Open returns a device that computes nothing.
func Open(c Config) (*Device, error) { return Over(c, nothing{}) }

// Over returns a device that computes on another, which Close closes. After an error the other is open as it was.
func Over(c Config, on device.Device) (*Device, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Device{config: c, on: on, clock: clock{now: time.Now, wait: pace.Until}, blocks: map[unsafe.Pointer]device.Mem{}}, nil
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
	add(d.KeepsValues(), "computes on %s", d.on.Name())
	return "emulated (" + strings.Join(parts, ", ") + ")"
}

// Host implements device.Device: its memory is its own, whoever keeps the values.
func (d *Device) Host() bool { return false }

// Attach implements device.Threaded.
func (d *Device) Attach() error {
	if t, ok := d.on.(device.Threaded); ok {
		if err := t.Attach(); err != nil {
			return err
		}
	}
	return pace.Tighten()
}

// KeepsValues implements device.Emulator.
func (d *Device) KeepsValues() bool { return d.on != device.Device(nothing{}) }

// Spent is the time of everything so far, whether it has passed or not.
func (d *Device) Spent() time.Duration { return d.clock.spent }

// Lag implements device.Emulator.
func (d *Device) Lag() time.Duration { return time.Duration(d.clock.lag.Load()) }

// Held is how many bytes are allocated, and Peak the most that ever were.
func (d *Device) Held() int64 { return d.held }

// Peak is the most bytes that were ever allocated at once.
func (d *Device) Peak() int64 { return d.peak }

// Alloc implements device.Device. It counts what was asked for, which may be less than the host takes.
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
	m, err := d.on.Alloc(t, n)
	if err != nil {
		return device.Mem{}, err
	}
	d.blocks[m.Pointer()] = m
	d.held += asked
	d.peak = max(d.peak, d.held)
	return m, nil
}

// Free implements device.Device.
func (d *Device) Free(m device.Mem) {
	if whole, ok := d.blocks[m.Pointer()]; ok {
		delete(d.blocks, m.Pointer())
		d.held -= int64(whole.Bytes())
		d.on.Free(whole)
	}
}

// Upload implements device.Device.
func (d *Device) Upload(dst device.Mem, src []byte) {
	device.CheckLength("Upload", src, dst)
	d.move(dst.Bytes())
	d.on.Upload(dst, src)
	d.clock.worked()
}

// Download implements device.Device. The bytes are there at once: of a device that computes nothing they depend on nothing.
func (d *Device) Download(dst []byte, src device.Mem) {
	device.CheckLength("Download", dst, src)
	d.move(src.Bytes())
	d.on.Download(dst, src)
	d.clock.worked()
}

// Begin implements device.Emulator.
func (d *Device) Begin(w device.Work) { d.clock.begin(d.config.fixed(w), w.Kind != device.UpdateWork) }

// WhileWaiting implements device.Waiter.
func (d *Device) WhileWaiting(f func()) { d.clock.beside = f }

// Record implements device.Device: it returns when the moment has come, so that a stage's time shows where the stage is driven.
func (d *Device) Record() device.Event {
	d.clock.settle() // a failure is kept for Synchronize
	return nil
}

// Synchronize implements device.Device.
func (d *Device) Synchronize() error {
	d.clock.settle()
	return d.on.Synchronize()
}

// Close implements device.Device.
func (d *Device) Close() error {
	for _, m := range d.blocks {
		d.Free(m)
	}
	return d.on.Close()
}

// Has implements device.Device.
func (d *Device) Has(op device.Op) bool { return d.on.Has(op) }

// Do implements device.Device: the operation takes what it costs.
func (d *Device) Do(op device.Op) {
	flops, bytes := device.Cost(op)
	d.clock.spend(d.config.Launch + over(flops, d.config.FLOPs) + over(float64(bytes), d.config.Bandwidth))
	d.on.Do(op)
	d.clock.worked()
}

// move queues the transfer of so many bytes.
func (d *Device) move(bytes int) {
	d.clock.spend(d.config.Launch + over(float64(bytes), d.config.Bandwidth))
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
