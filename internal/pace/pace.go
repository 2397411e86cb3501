// Package pace waits until a moment to within some microseconds: what emulated devices and links spend their time with.
//
//	runtime.LockOSThread()
//	err := pace.Tighten()                            // once a thread
//	pace.Until(start.Add(10 * time.Millisecond))
package pace

import "time"

// early is how long before the moment the thread is woken: a little more than what a wake takes (docs/emulation.md has
// figures). The rest is spent looking at the clock.
const early = 50 * time.Microsecond

// Until returns at a moment, or at once when it is past.
func Until(moment time.Time) {
	for left := time.Until(moment); left > early; left = time.Until(moment) {
		sleep(left - early)
	}
	for time.Now().Before(moment) { // at most early
	}
}

// coarse is how early a wait that can be interrupted gives way to one that cannot.
const coarse = 2 * time.Millisecond

// UntilOr is Until, but it returns false when stop is closed more than a few milliseconds before the moment.
func UntilOr(moment time.Time, stop <-chan struct{}) bool {
	if left := time.Until(moment); left > coarse {
		t := time.NewTimer(left - coarse)
		defer t.Stop()
		select {
		case <-t.C:
		case <-stop:
			return false
		}
	}
	Until(moment)
	return true
}
