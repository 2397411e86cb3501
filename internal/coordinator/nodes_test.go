package coordinator_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
)

// TestAJobRunsOverTwoNodes: each node has one of its stages and of its shards, and its status tells of both.
func TestAJobRunsOverTwoNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submit("good", 450)
		j := r.until(id, "commits", committed)
		s := coordinator.Status(j, nil, r.Published().Jobs[id])
		if len(s.StageStatus) != 2 || s.StageStatus[0].Stage != 0 || s.StageStatus[1].Stage != 1 || len(s.LinkStatus) != 1 {
			t.Errorf("stages %+v, links %+v", s.StageStatus, s.LinkStatus)
		}
		if s.State != api.Running || s.Round < 100 || s.Loss == nil {
			t.Errorf("status %+v", s)
		}
		j = r.until(id, "ends", ended)
		if j.State != cluster.Done || j.CommittedRound() != 450 || j.Generation != 1 {
			t.Errorf("%s at round %d, generation %d: %s", j.State, j.CommittedRound(), j.Generation, j.Reason)
		}
		if want := `[{"stage":0,"node":"a","device":0,"cores":[0]},{"stage":1,"node":"b","device":0,"cores":[0]}]`; string(j.Placement) != want {
			t.Errorf("placed %s, want %s", j.Placement, want)
		}
		for k, s := range j.LastCommitted().Shards {
			if len(s.Nodes) != 1 || s.Nodes[0] != r.nodes[k].Name {
				t.Errorf("the shard of stage %d is on %v", k, s.Nodes)
			}
			for i, n := range r.nodes {
				if _, err := n.Agent.Shards(id).Size(t.Context(), s.Digest); (err == nil) != (i == k) {
					t.Errorf("the shard of stage %d on %s: %v", k, n.Name, err)
				}
			}
		}
		if n := r.Counts.Deaths.Load(); n != 0 {
			t.Errorf("%d workers died that were told to end", n)
		}
	})
}

// TestWithOneWorkerAllAreReplaced: what the others compute is of no use any more.
func TestWithOneWorkerAllAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		r.kill(1)
		j := r.until(id, "trains again", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
		if !strings.Contains(j.Reason, "b: the worker") || !strings.Contains(j.Reason, "signal: killed; resumed from round") || j.CommittedRound() < before {
			t.Errorf("round %d, %d before: %s", j.CommittedRound(), before, j.Reason)
		}
		for i := range r.nodes {
			if all := r.running(i); len(all) != 1 || all[0].Process.Generation != 2 {
				t.Errorf("processes on %s: %+v", r.nodes[i].Name, all)
			}
		}
		if n := r.Counts.Deaths.Load(); n != 1 {
			t.Errorf("%d deaths were counted of one", n)
		}
		r.until(id, "commits again", func(j *cluster.Job) bool { return j.CommittedRound() > before })
	})
}

// TestWorkersOfTwoNodesAreAdopted together, or replaced together where one is missing.
func TestWorkersOfTwoNodesAreAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		r.leave()
		r.start()
		j := r.until(id, "commits further", func(j *cluster.Job) bool { return j.CommittedRound() > before })
		if j.Generation != 1 {
			t.Errorf("generation %d", j.Generation)
		}
		r.leave()
		r.kill(0)
		r.start()
		defer r.end()
		j = r.until(id, "trains again", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
		if !strings.Contains(j.Reason, "a: the daemon was restarted and found no worker") {
			t.Error(j.Reason)
		}
		if n := r.Counts.Deaths.Load(); n != 0 {
			t.Errorf("%d deaths were counted: the daemon cannot know of any", n)
		}
	})
}

// TestACancelledJobEndsOnTwoNodes with a commit.
func TestACancelledJobEndsOnTwoNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		if _, err := r.raft.Apply(t.Context(), &cluster.RequestCancel{Job: id, Reason: "cancelling"}); err != nil {
			t.Fatal(err)
		}
		j := r.until(id, "ends", ended)
		if j.State != cluster.Cancelled || j.CommittedRound() <= before || len(j.LastCommitted().Shards) != 2 {
			t.Errorf("%s at round %d, %d before: %s", j.State, j.CommittedRound(), before, j.Reason)
		}
		r.until(id, "has no worker", func(*cluster.Job) bool { return len(r.running(0))+len(r.running(1)) == 0 })
	})
}

// TestAJobWaitsForANodeThatCannotStartItsWorker, without the workers that were started.
func TestAJobWaitsForANodeThatCannotStartItsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		r.nodes[1].Agent.(*fragile).busy.Store(1)
		id := r.submit("long", 1e6)
		r.until(id, "waits", func(*cluster.Job) bool { return r.Published().Jobs[id].Waits })
		if all := r.running(0); len(all) > 0 {
			t.Errorf("it waits, and on a there are %+v", all)
		}
		j := r.until(id, "commits", committed)
		if j.Generation != 2 {
			t.Errorf("generation %d", j.Generation)
		}
		if n := r.Counts.Deaths.Load(); n != 0 {
			t.Errorf("%d deaths were counted of none", n)
		}
	})
}

// TestALastRoundThatIsRefusedIsAskedForWithPauses: no clock of a test would move while it was asked for again at once.
func TestALastRoundThatIsRefusedIsAskedForWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a")
		id := r.submit("refuses-at-20", 20)
		defer r.end()
		time.Sleep(time.Minute)
		j := r.until(id, "is known", func(*cluster.Job) bool { return true })
		if j.State != cluster.Running || j.Pending != 20 {
			t.Errorf("%s, with round %d to commit: %s", j.State, j.Pending, j.Reason)
		}
	})
}
