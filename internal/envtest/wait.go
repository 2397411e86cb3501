package envtest

import (
	"runtime"
	"testing"
	"time"
)

// Bound is how long any one wait of a test may take: far more than it ever does, on a busy machine too. It is less than the time that `make test` gives the
// tests of a package (TIMEOUT), so that a test that waits in vain says for what.
const Bound = 5 * time.Minute

// Eventually waits until something holds, and fails the test where it does not within Bound. It belongs on the test's own goroutine.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !Reached(t, what, holds) {
		t.FailNow()
	}
}

// Reached does so on any goroutine, which has to end what it began where the answer is false: the test has failed, and goes on.
func Reached(t testing.TB, what string, holds func() bool) bool {
	t.Helper()
	for deadline := time.Now().Add(Bound); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("after %v, not yet: %s\n%s", Bound, what, stacks())
			return false
		}
	}
	return true
}

// Receive returns what a channel brings, the zero value once it is closed. The test fails where nothing comes within Bound. It belongs on the test's own
// goroutine.
func Receive[T any](t testing.TB, what string, from <-chan T) (got T) {
	t.Helper()
	late := time.NewTimer(Bound)
	defer late.Stop()
	select {
	case got = <-from:
	case <-late.C:
		t.Fatalf("after %v, not yet: %s\n%s", Bound, what, stacks())
	}
	return got
}

// stacks is what all goroutines do.
func stacks() []byte {
	text := make([]byte, 1<<20)
	return text[:runtime.Stack(text, true)]
}
