package emulated

import (
	"sync/atomic"
	"time"
)

// grace is how late an operation may come and still begin when the one before it ended: the host needs that long to hand it over.
const grace = 100 * time.Microsecond

// clock says when the operations of a device end. What the host does for an operation, which may be its arithmetic, runs beside the time
// that the operation takes, and is late only where it has not ended when the last of the operations that somebody waits for has.
type clock struct {
	now  func() time.Time
	wait func(until time.Time)

	until time.Time     // when everything so far has ended
	done  time.Time     // when the host had done its part of what nobody has waited for; zero: there is nothing
	late  time.Duration // how far the host was behind when somebody waited last
	fixed bool          // the pass in progress has its time from the configuration
	spent time.Duration // by everything so far
	lag   atomic.Int64  // nanoseconds: see device.Emulator
}

// begin starts a pass that takes so long, whatever its operations take; 0: they say.
func (c *clock) begin(t time.Duration) {
	c.fixed = false // of the pass before
	if t > 0 {
		c.spend(t)
		c.fixed = true
	}
}

// spend queues an operation, before the host does anything for it.
func (c *clock) spend(t time.Duration) {
	if c.fixed {
		return
	}
	busy := c.until
	if c.done.After(busy) {
		busy = c.done
	}
	if now := c.now(); now.Sub(busy) > grace { // the device has been idle
		c.behind(c.done)
		c.until, c.late = now, 0
	}
	c.until = c.until.Add(t)
	c.spent += t
}

// worked notes that the host has done its part of an operation.
func (c *clock) worked() {
	c.done = c.now()
}

// settle returns when everything has ended.
func (c *clock) settle() {
	c.fixed = false
	if c.done.IsZero() {
		c.wait(c.until) // of a pass that was only begun
		return
	}
	if c.until.After(c.now()) {
		c.wait(c.until)
		c.done = c.now()
	}
	c.behind(c.done)
	c.done = time.Time{}
}

// behind counts how far the host was behind at a moment, but for what it was behind before in the same run of operations.
func (c *clock) behind(at time.Time) {
	late := max(0, at.Sub(c.until))
	c.lag.Add(int64(max(0, late-c.late)))
	c.late = late
}
