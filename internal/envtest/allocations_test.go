package envtest

import (
	"testing"
)

var kept []byte

func TestWhatAllocatesEachTimeIsFound(t *testing.T) {
	if got := Allocations(5, func() { kept = make([]byte, 64) }); got != 1 {
		t.Errorf("%v allocations a call, want 1", got)
	}
}

func TestWhatAllocatesNowAndThenIsNotTheCalls(t *testing.T) {
	calls := 0
	if got := Allocations(5, func() {
		if calls++; calls <= 12 {
			kept = make([]byte, 64)
		}
	}); got != 0 {
		t.Errorf("%v allocations a call, want none", got)
	}
}
