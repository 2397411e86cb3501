package coordinator

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func TestOnlyProgressEndsAStallInLoading(t *testing.T) {
	var o observed
	for range 3 {
		o.takeLoading(&control.Loading{ReadBytes: 1000, CPUSeconds: 0.1}) // of answering
	}
	if o.stalled != 3*agent.PollStatus || o.loadingFor != 3*agent.PollStatus {
		t.Errorf("stalled for %v of %v, want %v", o.stalled, o.loadingFor, 3*agent.PollStatus)
	}
	o.takeLoading(&control.Loading{ReadBytes: 2 << 20})
	o.takeLoading(&control.Loading{ReadBytes: 2 << 20, CPUSeconds: 2})
	if o.stalled != 0 || o.loadingFor != 5*agent.PollStatus {
		t.Errorf("stalled for %v of %v after progress", o.stalled, o.loadingFor)
	}
	o.takeLoading(nil) // it trains
	if o.loadingFor != 5*agent.PollStatus {
		t.Errorf("loading went on for %v", o.loadingFor)
	}
}
