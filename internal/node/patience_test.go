package node

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/avgpipe/avgpipe/internal/api"
)

// TestADiskThatHangsIsNotWaitedFor without a bound: whoever asks is told so.
func TestADiskThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		works := make(chan struct{})
		_, err := patiently(t.Context(), "7", func() (int, error) {
			<-works
			return 1, nil
		})
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Status != http.StatusServiceUnavailable || !strings.Contains(e.Error(), "the directory of job 7") {
			t.Errorf("it hung, and the answer is %v", err)
		}
		close(works)
		if n, err := patiently(t.Context(), "7", func() (int, error) { return 2, nil }); n != 2 || err != nil {
			t.Errorf("it works again, and the answer is %d, %v", n, err)
		}
	})
}
