package coordinator

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func TestOnlyProgressEndsAStallInLoading(t *testing.T) {
	var w worker
	for range 3 {
		w.takeLoading(&control.Loading{ReadBytes: 1000, CPUSeconds: 0.1}) // of answering
	}
	if w.stalled != 3*agent.PollStatus || w.loadingFor != 3*agent.PollStatus {
		t.Errorf("stalled for %v of %v, want %v", w.stalled, w.loadingFor, 3*agent.PollStatus)
	}
	w.takeLoading(&control.Loading{ReadBytes: 2 << 20})
	w.takeLoading(&control.Loading{ReadBytes: 2 << 20, CPUSeconds: 2})
	if w.stalled != 0 || w.loadingFor != 5*agent.PollStatus {
		t.Errorf("stalled for %v of %v after progress", w.stalled, w.loadingFor)
	}
	w.takeLoading(nil) // it trains
	if w.loadingFor != 5*agent.PollStatus {
		t.Errorf("loading went on for %v", w.loadingFor)
	}
}
