package node

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/avgpipe/avgpipe/internal/api"
)

// TestADiskThatHangsIsNotWaitedFor without a bound: whoever asks is told so, and however many ask, few of them are left behind.
func TestADiskThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		works, all := make(chan struct{}), &readers{}
		var began atomic.Int32
		for range 3 * mostReads {
			_, err := patiently(t.Context(), all, "7", func() (int, error) {
				began.Add(1)
				<-works
				return 1, nil
			})
			if e, ok := errors.AsType[*api.Error](err); !ok || e.Status != http.StatusServiceUnavailable || !strings.Contains(e.Error(), "the directory of job 7") {
				t.Errorf("it hung, and the answer is %v", err)
			}
		}
		if n := began.Load(); n != mostReads {
			t.Errorf("%d reads hang, want %d", n, mostReads)
		}
		if n, err := patiently(t.Context(), all, "8", func() (int, error) { return 2, nil }); n != 2 || err != nil {
			t.Errorf("of another job the answer is %d, %v", n, err)
		}
		close(works)
		if n, err := patiently(t.Context(), all, "7", func() (int, error) { return 2, nil }); n != 2 || err != nil {
			t.Errorf("it works again, and the answer is %d, %v", n, err)
		}
	})
}
