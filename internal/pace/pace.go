// Package pace waits until a moment to within some microseconds: what emulated devices and links spend their time with.
//
//	runtime.LockOSThread()
//	err := pace.Tighten()                            // once a thread
//	pace.Until(start.Add(10 * time.Millisecond))
package pace

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

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

// Tighten has the kernel wake the calling thread on time: by default it may be 50 us late, to save power. The goroutine should be
// locked to the thread.
func Tighten() error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set the timer slack of a thread to 1 ns: %w", err)
	}
	return nil
}

// sleep blocks the thread. Go's own timers wake through its poller, which counts in milliseconds. A signal ends it early, and
// Until sleeps again.
func sleep(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &t, nil)
}
