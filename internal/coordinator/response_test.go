package coordinator

import (
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestAWorkerThatTrainsIsStuckByItsOwnMeasure: response_timeout is the most that it gets, and what one gets of which nothing is known.
func TestAWorkerThatTrainsIsStuckByItsOwnMeasure(t *testing.T) {
	batch := 6.0
	slow := &control.Status{Progress: api.JobStatus{BatchS: &batch}}
	for name, c := range map[string]struct {
		w    worker
		most time.Duration
		want time.Duration
	}{
		"it loads":               {worker{phase: loading, gap: time.Second}, 30 * time.Second, 30 * time.Second},
		"it has said nothing":    {worker{phase: training}, 30 * time.Second, 30 * time.Second},
		"it answers at once":     {worker{phase: training, gap: 100 * time.Millisecond}, 30 * time.Second, 10 * time.Second},
		"it has taken a second":  {worker{phase: training, gap: 1200 * time.Millisecond}, 30 * time.Second, 24 * time.Second},
		"its steps are long":     {worker{phase: training, gap: 100 * time.Millisecond, status: slow}, 30 * time.Second, 18 * time.Second},
		"it has taken two":       {worker{phase: training, gap: 2 * time.Second}, 30 * time.Second, 30 * time.Second},
		"the configured is less": {worker{phase: training, gap: 100 * time.Millisecond}, 3 * time.Second, 3 * time.Second},
	} {
		if got := c.w.responseAfter(Limits{ResponseTimeout: c.most}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
