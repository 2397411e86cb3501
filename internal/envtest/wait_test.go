package envtest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that may fail without failing this one.
type failing struct {
	testing.TB
	said string
	over bool
}

func (f *failing) Helper() {}

func (f *failing) Errorf(format string, args ...any) { f.said += fmt.Sprintf(format, args...) }

func (f *failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	f.FailNow()
}

func (f *failing) FailNow() {
	f.over = true
	runtime.Goexit()
}

// fails runs a wait until it ends, and returns what the test then says.
func fails(wait func(t testing.TB)) *failing {
	f := &failing{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait(f)
	}()
	<-ended
	return f
}

func TestAWaitInVainSaysForWhatAndWhatGoroutinesDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose clock makes five minutes short
		for name, wait := range map[string]func(testing.TB){
			"Eventually": func(t testing.TB) { Eventually(t, "the moon is blue", func() bool { return false }) },
			"Receive":    func(t testing.TB) { Receive(t, "the moon is blue", make(chan int)) },
		} {
			begun := time.Now()
			f := fails(wait)
			if !f.over || !strings.Contains(f.said, "after 5m0s, not yet: the moon is blue") || !strings.Contains(f.said, "envtest.fails.func1") {
				t.Errorf("%s: the test goes on: %v, and says %s", name, !f.over, f.said)
			}
			if took := time.Since(begun); took < Bound || took > Bound+time.Second { // the clock is the bubble's
				t.Errorf("%s fails after %v", name, took)
			}
		}
		f := fails(func(t testing.TB) {
			if Reached(t, "the moon is blue", func() bool { return false }) {
				t.Errorf("it was reached")
			}
		})
		if f.over || !strings.Contains(f.said, "not yet: the moon is blue") || strings.Contains(f.said, "it was reached") {
			t.Errorf("Reached ends the goroutine: %v, and says %s", f.over, f.said)
		}
	})
}

func TestAWaitEndsWithWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, later := 0, make(chan string)
		f := fails(func(t testing.TB) {
			Eventually(t, "three calls", func() bool { calls++; return calls == 3 })
			go func() {
				time.Sleep(Bound / 2)
				later <- "here"
			}()
			if got := Receive(t, "a word", later); got != "here" {
				t.Errorf("received %q", got)
			}
			close(later)
			if got := Receive(t, "the end", later); got != "" {
				t.Errorf("received %q of a closed channel", got)
			}
		})
		if f.over || f.said != "" || calls != 3 {
			t.Errorf("after %d calls it ended: %v, and says %s", calls, f.over, f.said)
		}
	})
}
