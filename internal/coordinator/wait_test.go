package coordinator

import (
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// TestAJobWaitsByTheClockThatDoesNotJump: one that was submitted in the future waits from now on, and how long another has waited is counted by the process.
func TestAJobWaitsByTheClockThatDoesNotJump(t *testing.T) {
	now := time.Now()
	for submitted, want := range map[time.Duration]time.Duration{-2 * time.Hour: 3 * time.Hour, 4 * 365 * 24 * time.Hour: time.Hour} {
		o := &observed{Job: &cluster.Job{State: cluster.Queued, Submitted: now.Add(submitted).UTC().Round(0)}}
		o.noteWait(now, true)
		later := now.Add(time.Hour) // with the reading of the clock that does not jump
		o.noteWait(later, false)
		if got := later.Sub(o.since); got != want {
			t.Errorf("submitted %v after now: it has waited for %v, want %v", submitted, got, want)
		}
	}
}
