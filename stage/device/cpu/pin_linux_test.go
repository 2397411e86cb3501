package cpu

import (
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAttachPinsTheCallingThreadAndNoOther(t *testing.T) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	last := members(&before)[before.Count()-1]
	bound := make(chan []int)
	go func() {
		runtime.LockOSThread() // ends locked, as an executor does, and its bound thread with it
		var set unix.CPUSet
		if d, err := Open(Config{Cores: []int{last}}); err != nil {
			t.Error(err)
		} else if err := d.Attach(); err != nil {
			t.Error(err)
		}
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			t.Error(err)
		}
		bound <- members(&set)
	}()
	if got := <-bound; !slices.Equal(got, []int{last}) {
		t.Errorf("the thread may use %v after Attach, want [%d]", got, last)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &after); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(members(&before), members(&after)) {
		t.Errorf("another thread may use %v, before %v", members(&after), members(&before))
	}
}
