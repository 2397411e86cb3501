package stagetest

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Recorder is a device that counts its operations as it runs them.
type Recorder struct {
	device.Device
	Count int
	notes bool
	ops   []device.Op
}

// Do implements device.Device.
func (r *Recorder) Do(op device.Op) {
	r.Count++
	if r.notes {
		r.ops = append(r.ops, op)
	}
	r.Device.Do(op)
}

// AllocatesNothing runs call, and then its operations again and again: a device leaves no work to the garbage collector.
func (r *Recorder) AllocatesNothing(t *testing.T, name string, call func()) {
	t.Helper()
	r.ops, r.notes = nil, true
	call()
	r.notes = false
	got := testing.AllocsPerRun(5, func() {
		for _, op := range r.ops {
			r.Device.Do(op)
		}
	})
	if got != 0 {
		t.Errorf("%s: the device makes %v allocations a run, want none", name, got)
	}
}

// AllocatesOperations runs call some times: it makes the operations that it has the device do, and allocates nothing else.
func (r *Recorder) AllocatesOperations(t *testing.T, call func()) {
	t.Helper()
	const runs = 10
	call()
	r.Count = 0
	got := testing.AllocsPerRun(runs, call)
	if want := float64(r.Count / (runs + 1)); got > want {
		t.Errorf("%v allocations a run, want one for each of %v operations", got, want)
	}
}
