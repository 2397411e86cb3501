package pace_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/pace"
)

func TestUntilIsNeverEarly(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := pace.Tighten(); err != nil {
		t.Fatal(err)
	}
	for _, d := range []time.Duration{-time.Second, 0, time.Microsecond, 80 * time.Microsecond, 3 * time.Millisecond} {
		moment := time.Now().Add(d)
		pace.Until(moment)
		late := time.Since(moment)
		if late < 0 {
			t.Errorf("%v: returned %v early", d, -late)
		}
		t.Logf("%v: %v late", d, late)
	}
}

func TestUntilOrEndsWhenItIsStopped(t *testing.T) {
	stop := make(chan struct{})
	close(stop)
	if pace.UntilOr(time.Now().Add(time.Hour), stop) {
		t.Error("an hour passed")
	}
	moment := time.Now().Add(5 * time.Millisecond)
	if !pace.UntilOr(moment, make(chan struct{})) || time.Now().Before(moment) {
		t.Error("it did not wait")
	}
}
