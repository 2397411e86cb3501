package coordinator

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestAStatusSaysNothingThatIsOver: what the coordinator waits for, and what holds a commit up, counts while the job goes on alone.
func TestAStatusSaysNothingThatIsOver(t *testing.T) {
	full := &control.Status{Held: "the disk is full"}
	for name, c := range map[string]struct {
		job    cluster.Job
		view   View
		state  api.State
		reason string
	}{
		"training":            {cluster.Job{State: cluster.Running, Reason: "training"}, View{Trains: true, Note: "a commit is due"}, api.Running, "training"},
		"cannot act":          {cluster.Job{State: cluster.Running, Reason: "training"}, View{Trains: true, Failing: true, Note: "no leader"}, api.Running, "training; now: no leader"},
		"loading":             {cluster.Job{State: cluster.Starting, Reason: "restarted"}, View{Note: "the worker is loading"}, api.Starting, "restarted; now: the worker is loading"},
		"a commit is held up": {cluster.Job{State: cluster.Running, Reason: "training"}, View{Trains: true, Finished: true, Note: "x", Status: full}, api.Waiting, "training; now: the disk is full"},
		"waiting":             {cluster.Job{State: cluster.Queued, Reason: "resumed"}, View{Waits: true, Note: "the disk is full"}, api.Waiting, "the disk is full"},
		"being cancelled":     {cluster.Job{State: cluster.Running, Cancelling: true, Reason: "cancelling"}, View{Trains: true, Note: "0 of 1 shards", Status: full}, api.Running, "cancelling: 0 of 1 shards"},
		"ended":               {cluster.Job{State: cluster.Cancelled, Reason: "cancelled"}, View{Trains: true, Finished: true, Waits: true, Note: "0 of 1 shards", Status: full}, api.Cancelled, "cancelled"},
	} {
		if s := Status(&c.job, nil, c.view); s.State != c.state || s.Reason != c.reason {
			t.Errorf("%s: %s: %s; want %s: %s", name, s.State, s.Reason, c.state, c.reason)
		}
	}
}
