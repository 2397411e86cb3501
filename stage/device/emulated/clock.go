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
	pass  bool          // a forward or a backward is in progress
	spent time.Duration // by everything so far
	lag   atomic.Int64  // nanoseconds: see device.Emulator

	beside  func() // device.Waiter
	serving bool   // it is being called: what it does takes none of the device's time
}

// beat is how long work beside a pass waits at most to be begun.
const beat = 500 * time.Microsecond

// begin starts a pass, or an update, that takes so long, whatever its operations take; 0: they say.
func (c *clock) begin(t time.Duration, pass bool) {
	c.pass, c.fixed = pass, false // of the pass before
	if t > 0 {
		c.spend(t)
		c.fixed = true
	}
}

// spend queues an operation, before the host does anything for it.
func (c *clock) spend(t time.Duration) {
	if c.fixed || c.serving {
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
	if !c.serving {
		c.done = c.now()
	}
}

// settle returns when everything has ended.
func (c *clock) settle() {
	if c.serving {
		return
	}
	c.fixed = false
	if c.done.IsZero() {
		c.sleep() // of a pass that was only begun
		return
	}
	if c.until.After(c.now()) {
		c.sleep()
		c.done = c.now()
	}
	c.behind(c.done)
	c.done = time.Time{}
}

// sleep returns when everything has ended, and serves what runs beside a pass meanwhile.
func (c *clock) sleep() {
	for c.beside != nil && c.pass {
		next := c.now().Add(beat)
		if !next.Before(c.until) {
			break
		}
		c.wait(next)
		c.serving = true
		c.beside()
		c.serving = false
	}
	c.wait(c.until)
}

// behind counts how far the host was behind at a moment, but for what it was behind before in the same run of operations.
func (c *clock) behind(at time.Time) {
	late := max(0, at.Sub(c.until))
	c.lag.Add(int64(max(0, late-c.late)))
	c.late = late
}
