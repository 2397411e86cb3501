package pipeline

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// parker puts one goroutine to sleep until it is woken. A wake that comes first is not lost; park may return early.
type parker interface {
	park()
	wake()
	// close frees the parker. Nobody may use it afterwards.
	close() error
}

// channelParker sleeps in the Go scheduler: on every system, and in tests of time.
type channelParker chan struct{}

func newChannelParker() parker { return make(channelParker, 1) }

func (c channelParker) park() { <-c }

func (c channelParker) wake() {
	select {
	case c <- struct{}{}:
	default: // a wake is pending already
	}
}

func (c channelParker) close() error { return nil }

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

// Processors is the GOMAXPROCS that a process with this many devices needs. A closure that computes in C holds its P for
// as long as it takes, 1 to 50 ms, until the runtime's monitor takes it away; with as many P as cores, links, the control
// socket and the garbage collector would stand still meanwhile. So each device has a P of its own, and as many are free as there
// are cores. The threads still share the cores: the kernel runs a link's few microseconds between the devices' work.
func Processors(devices int) int { return devices + max(2, runtime.NumCPU()) }
