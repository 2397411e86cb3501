package pipeline

import "runtime"

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

// Processors is the GOMAXPROCS that a process with this many devices needs. A closure that computes in C holds its P for
// as long as it takes, 1 to 50 ms, until the runtime's monitor takes it away; with as many P as cores, links, the control
// socket and the garbage collector would stand still meanwhile. So each device has a P of its own, and as many are free as there
// are cores. The threads still share the cores: the kernel runs a link's few microseconds between the devices' work.
func Processors(devices int) int { return devices + max(2, runtime.NumCPU()) }
