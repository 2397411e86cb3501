//go:build onednn && cgo && linux && amd64

package cpu

import (
	"runtime"
	"time"
)

// breathAfter is how long the device computes at most before it lets the Go scheduler run, when its operations are shorter than
// that. It must be below the 10 ms after which the runtime wants to preempt; see breath.
const breathAfter = 4 * time.Millisecond

// breath keeps the Go runtime from polling. A goroutine that has not passed through the scheduler for 10 ms is asked to; in C
// it cannot hear, so the runtime's monitor takes its P away, and because the goroutine takes a P back at the end of each
// call without passing through the scheduler, it does so 20 us later again, and again: 4,000 wakes a second, each of them
// on a core that computes. Passing through the scheduler now and then costs some 20 us and ends that
// (docs/decisions/0009-let-the-scheduler-breathe.md).
type breath struct{ last time.Time }

// take is called after each operation that may take long.
func (b *breath) take() {
	if now := time.Now(); now.Sub(b.last) > breathAfter {
		runtime.Gosched()
		b.last = now
	}
}
