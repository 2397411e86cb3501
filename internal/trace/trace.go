// Package trace is the one stream of spans that status, metrics, timelines and the tuner read. A span says which pipeline did what on
// which stage, from when to when. The code that computes or waits emits spans; listeners receive them.
package trace

import (
	"time"

	"github.com/avgpipe/avgpipe/schedule"
)

// Kind says what a span of time was spent on.
type Kind uint8

// The kinds of span.
const (
	Compute        Kind = iota // a forward or a backward on the device
	Optimizer                  // the optimizer step on the device, the clip's norm included
	Average                    // averaging arithmetic on the device
	Commit                     // the snapshot of a shard on the device
	Evaluate                   // a forward of the evaluation on the device
	WaitUpstream               // a pipeline waits for activations (or the norm) from the stage before it
	WaitDownstream             // a pipeline waits for gradients (or the norm) from the stage after it
	WaitAverage                // a pipeline waits for the center
	WaitDevice                 // a pipeline has work ready and waits for its device, which another pipeline holds
	Send                       // a frame is on its way out
	kinds
)

// OnDevice reports whether the span held the device.
func (k Kind) OnDevice() bool { return k <= Evaluate }

// Span is what a stretch of time was spent on. Start and End are on the monotonic clock of the process that emitted it.
type Span struct {
	Start, End time.Duration // since the process's Epoch
	Kind       Kind
	Pipeline   int // 0-based
	Stage      int // 0-based
	Micro      int // -1 when the span is not of one micro-batch
	Step       uint64
	// Work says what a Compute span computed of its micro-batch, and what the waits before it were for; of a Send, whether it is of
	// activations or of gradients. An Optimizer span with a micro-batch is an update inside of a batch.
	Work schedule.Kind
}

// Epoch is the zero of every Span of this process.
var Epoch = time.Now()

// Now is the time since Epoch.
func Now() time.Duration { return time.Since(Epoch) }

// Listener receives spans; nil receives none. It runs on the emitting goroutine, concurrently with itself, and must return at once.
type Listener func(Span)

// Emit calls the listener if there is one.
func (l Listener) Emit(s Span) {
	if l != nil {
		l(s)
	}
}
