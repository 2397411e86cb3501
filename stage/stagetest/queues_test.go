package stagetest_test

import (
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// Queue 0 follows the others, and they follow it, though no queue runs before somebody waits for it.
func TestQueueZeroComesBeforeAndAfterTheOthers(t *testing.T) {
	first := stagetest.NewLate()
	d := device.NewQueues([]device.Queue{first, first.Beside(), first.Beside()})
	defer d.Close()
	alloc := func(queue int) device.Mem {
		d.Use(queue)
		m, err := d.Alloc(device.F32, 2)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	one, other, sum := alloc(1), alloc(2), alloc(0)
	for range 100 { // more than a ring of events
		d.Use(1)
		d.Upload(one, device.FloatBytes([]float32{1, 2}))
		d.Use(2)
		d.Upload(other, device.FloatBytes([]float32{10, 20}))
		d.Use(0)
		d.Do(&device.Copy{Y: sum, X: one})
		d.Do(&device.Axpy{Y: sum, A: 1, X: other})
		d.Use(1)
		d.Do(&device.Zero{X: one})
		d.Do(&device.Axpy{Y: one, A: 2, X: sum})
		found := make([]float32, 2)
		if err := device.Read(d, device.FloatBytes(found), one); err != nil || !slices.Equal(found, []float32{22, 44}) {
			t.Fatalf("found %v, %v, want 22 and 44", found, err)
		}
	}
	d.Use(0)
	for _, m := range []device.Mem{one, other, sum} {
		d.Free(m)
	}
	if err := d.Synchronize(); err != nil {
		t.Error(err)
	}
}

// What queue 0 is asked for fails as that failed which it follows.
func TestSynchronizingQueueZeroReportsTheOthers(t *testing.T) {
	first := stagetest.NewLate()
	d := device.NewQueues([]device.Queue{first, first.Beside()})
	defer d.Close()
	d.Use(1)
	table, err := d.Alloc(device.F32, 4)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := d.Alloc(device.I32, 1)
	if err != nil {
		t.Fatal(err)
	}
	d.Upload(ids, device.IntBytes([]int32{9}))
	d.Do(&device.Embed{Out: table.Slice(0, 2), Tokens: table.Slice(2, 2), IDs: ids})
	d.Use(0)
	if d.Synchronize() == nil {
		t.Error("no failure is reported")
	}
	if err := d.Synchronize(); err != nil {
		t.Errorf("it is reported again: %v", err)
	}
}
