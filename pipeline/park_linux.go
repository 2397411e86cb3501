package pipeline

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// eventParker sleeps in the kernel on an event counter. The Go scheduler needs two thread switches to wake a goroutine that is
// locked to its thread (find a thread that finds the goroutine; hand over to the goroutine's own): 6 to 25 us here. One
// write to the counter wakes the thread itself: about 2 us (docs/decisions/0007).
type eventParker struct{ fd int }

// newParker returns the fastest parker that the system grants.
func newParker() parker {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil { // out of file descriptors, or a sandbox without the call
		return newChannelParker()
	}
	return eventParker{fd}
}

// The errors below can only be an interruption by a signal: park may return early, and its caller looks at its queue again;
// an event counter far from its limit is written at once.
func (p eventParker) park() {
	var b [8]byte
	_, _ = unix.Read(p.fd, b[:])
}

func (p eventParker) wake() {
	one := [8]byte{1} // little- or big-endian, it is not 0
	for {
		if _, err := unix.Write(p.fd, one[:]); err != unix.EINTR {
			return
		}
	}
}

func (p eventParker) close() error {
	if err := unix.Close(p.fd); err != nil {
		return fmt.Errorf("executor: close its event counter: %w", err)
	}
	return nil
}
