package stagetest_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

func TestLateConforms(t *testing.T) {
	stagetest.Device(t, func() device.Device { return stagetest.NewLate() })
}

// A device that runs nothing until it must shows who does not wait.
func TestLateRunsNothingBeforeItIsWaitedFor(t *testing.T) {
	d := stagetest.NewLate()
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	m, err := d.Alloc(device.F32, 1)
	if err != nil {
		t.Fatal(err)
	}
	sent, got := []float32{1}, []float32{5}
	d.Upload(m, device.FloatBytes(sent))
	sent[0] = 2
	d.Download(device.FloatBytes(got), m)
	if got[0] == got[0] {
		t.Errorf("%v was read before an event, want a value that is not a number", got[0])
	}
	if err := device.Wait(d.Record()); err != nil || got[0] != 2 {
		t.Errorf("read %v, error %v; want 2, which was there when the upload ran", got[0], err)
	}
}
