//go:build onednn && cgo && linux && amd64

package cpu

import (
	"runtime"
	"time"
)

// yieldAfter is how long the device computes at most before it lets the Go scheduler run, when its operations are shorter than
// that. It must be below the 10 ms after which the runtime wants to preempt; see yielder.
const yieldAfter = 4 * time.Millisecond

// yielder keeps the Go runtime from polling. A goroutine that has not passed through the scheduler for 10 ms is asked to; in C
// it cannot answer, so the runtime's monitor takes its P away, and because the goroutine takes a P back at the end of each
// call without passing through the scheduler, it does so 20 us later again, and again: 4,000 wakes a second, each of them
// on a core that computes. Passing through the scheduler now and then costs some 20 us and ends that
// (docs/decisions/0009-let-the-scheduler-breathe.md).
type yielder struct{ last time.Time }

// yield is called after each operation that may take long.
func (y *yielder) yield() {
	if now := time.Now(); now.Sub(y.last) > yieldAfter {
		runtime.Gosched()
		y.last = now
	}
}
