package pace

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

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
