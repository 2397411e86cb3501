package stagetest

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/stage/device"
)

// Recorder is a device that notes its operations as it runs them.
type Recorder struct {
	device.Device
	notes bool
	ops   []device.Op
}

// Do implements device.Device.
func (r *Recorder) Do(op device.Op) {
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
	got := envtest.Allocations(5, func() {
		for _, op := range r.ops {
			r.Device.Do(op)
		}
		if err := r.Synchronize(); err != nil {
			t.Fatal(err)
		}
	})
	if got != 0 {
		t.Errorf("%s: the device makes %v allocations a run, want none", name, got)
	}
}
