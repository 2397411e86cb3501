package coordinator_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
)

// TestAJobThatHasLostItsNodeKeepsItsTurn: it goes back to the queue, once, and before those that were submitted after it.
func TestAJobThatHasLostItsNodeKeepsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		first := r.submit("long", 1e6)
		before := r.until(first, "commits", committed).CommittedRound()
		second := r.submit("long", 1e6)
		r.at(1).partition()
		r.change(1, func(n *coordinator.Node) {
			n.Reach = coordinator.Reach{Since: time.Now(), Down: true, Why: "it is gone"}
		})
		r.kill(0)
		r.until(first, "waits", func(*cluster.Job) bool { return r.Published().Jobs[first].Waits })
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			if v := r.Published().Jobs[first]; !v.Waits || v.Failing {
				t.Fatalf("it does not wait in the queue: %+v", v)
			}
		}
		r.at(1).heal()
		r.change(1, func(n *coordinator.Node) { n.Reach = coordinator.Reach{} })
		r.until(first, "commits further", func(j *cluster.Job) bool { return committed(j) && j.CommittedRound() > before })
		if j := r.until(second, "is there", func(*cluster.Job) bool { return true }); j.State != cluster.Queued || j.Generation > 0 {
			t.Errorf("the job behind it is %s: %s", j.State, j.Reason)
		}
	})
}
