package coordinator_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/job"
)

// inGroups makes a job's pipelines two groups, of one stage.
func inGroups(j *job.Job) { j.Stages, j.Pipelines, j.Groups = 1, 4, 2 }

// TestGroupsOfPipelinesRunOnNodesOfTheirOwn: a round has a shard of each, and the status tells of both. One that loses its worker goes on with the others
// from the committed round.
func TestGroupsOfPipelinesRunOnNodesOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submitWith("long", 1e6, inGroups)
		j := r.until(id, "commits", committed)
		if want := `[{"stage":0,"node":"a","device":0,"cores":[0]},{"group":1,"stage":0,"node":"b","device":0,"cores":[0]}]`; string(j.Placement) != want {
			t.Errorf("placed %s, want %s", j.Placement, want)
		}
		m := j.LastCommitted()
		if m.Stages != 1 || len(m.Shards) != 2 || len(m.Cursors) != 4 || m.Shards[0].Nodes[0] != "a" || m.Shards[1].Nodes[0] != "b" || m.Shards[0].Digest == m.Shards[1].Digest {
			t.Errorf("the round is %+v", m)
		}
		s := coordinator.Status(j, nil, r.Published().Jobs[id])
		if len(s.StageStatus) != 2 || s.StageStatus[0].Group != 0 || s.StageStatus[1].Group != 1 || s.StageStatus[1].Stage != 0 || s.TokensPerS != 2000 || s.Loss == nil {
			t.Errorf("status %+v", s)
		}
		before := j.CommittedRound()
		r.kill(1) // and its node is there: both groups go on at once
		j = r.until(id, "trains again", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
		if s, err := r.Spec(j); err != nil || s.Groups() != 2 || !strings.Contains(j.Reason, "resumed from round") || j.CommittedRound() < before {
			t.Errorf("round %d, %d before: %s (%v)", j.CommittedRound(), before, j.Reason, err)
		}
		if _, err := r.raft.Apply(t.Context(), &cluster.RequestCancel{Job: id, Reason: "cancelling"}); err != nil {
			t.Fatal(err)
		}
		j = r.until(id, "ends", ended)
		if j.State != cluster.Cancelled || j.CommittedRound() <= before || len(j.LastCommitted().Shards) != 2 {
			t.Errorf("%s at round %d, %d before: %s", j.State, j.CommittedRound(), before, j.Reason)
		}
	})
}

// TestGroupsThatMoveTakeTheirShardsAlong: each node gets the shard of the group that goes there.
func TestGroupsThatMoveTakeTheirShardsAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		id := r.submitModel(1, inGroups)
		before := r.until(id, "commits", committed).CommittedRound()
		gone := 1
		if !strings.Contains(placement(r, id), `"b"`) {
			gone = 2
		}
		r.at(gone).partition()
		r.change(gone, func(n *coordinator.Node) {
			n.Reach = coordinator.Reach{Since: time.Now(), Down: true, Why: "it is gone"}
		})
		for i := range r.nodes {
			if i != gone && len(r.running(i)) > 0 {
				r.kill(i) // whose links to it are broken
			}
		}
		j := r.until(id, "trains elsewhere", func(j *cluster.Job) bool {
			return j.State == cluster.Running && j.Generation > 1 && j.CommittedRound() > before
		})
		if s, err := r.Spec(j); err != nil || s.Groups() != 2 || strings.Contains(string(j.Placement), `"node":"`+r.nodes[gone].Name+`"`) || !strings.Contains(j.Reason, "group 1: all stages on ") {
			t.Errorf("placed %s: %s", j.Placement, j.Reason)
		}
	})
}

// TestGroupsWaitForAsManyNodes, and the reason says so.
func TestGroupsWaitForAsManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submitWith("long", 1e6, func(j *job.Job) { inGroups(j); j.Pipelines, j.Groups = 3, 3 })
		time.Sleep(time.Minute)
		note := r.Published().Jobs[id].Note
		if !strings.Contains(note, "needs 1 core for each of 3 groups, on nodes of its own (a: taken by group 0 of 3; b: taken by group 1 of 3; 2 nodes for 3 groups)") {
			t.Error(note)
		}
	})
}

// TestOneGroupGoesOnWithoutAnother whose node is lost, from the last committed round and at once, and both when it is back for as long as a node must be gone before stages are
// fewer: each sample is consumed once.
func TestOneGroupGoesOnWithoutAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submitModel(1, func(j *job.Job) { j.Pipelines, j.Groups, j.Center.Replicas = 4, 2, 1 })
		before := r.until(id, "commits", r.pipelines(4)).CommittedRound()
		lost := time.Now()
		r.lose(1) // the shard of its group is only there
		j := r.until(id, "goes on with one group", r.pipelines(2))
		if took := time.Since(lost); took >= 30*time.Second { // the clock is the test's own
			t.Errorf("it goes on after %v", took)
		}
		for _, want := range []string{
			"goes on with 1 group of pipelines, from 2, of 2 pipelines each: node b is gone: it is gone", "no other has room for 2 groups of 1 stage", "resumed from round",
		} {
			if !strings.Contains(j.Reason, want) {
				t.Errorf("the reason is %q, without %q", j.Reason, want)
			}
		}
		if j.CommittedRound() <= before || len(j.LastCommitted().Shards) != 1 {
			t.Errorf("round %d, %d before, of %d shards", j.CommittedRound(), before, len(j.LastCommitted().Shards))
		}
		contiguous(t, j)
		back := time.Now()
		r.bring(1)
		j = r.until(id, "has both groups again", r.pipelines(4))
		if after := time.Since(back); after < time.Minute {
			t.Errorf("the group comes back after %v", after)
		}
		if !strings.Contains(j.Reason, "goes on with 2 groups of pipelines, from 1, of 2 pipelines each: there is room for its 2 groups of 1 stage again") {
			t.Error(j.Reason)
		}
		contiguous(t, j)
		seen := map[int]bool{}
		for _, l := range j.Lineage {
			seen[l.Pipelines] = true
		}
		if !seen[2] || !seen[4] || len(j.LastCommitted().Shards) != 2 {
			t.Errorf("lineage %+v, the last round of %d shards", j.Lineage, len(j.LastCommitted().Shards))
		}
	})
}

// pipelines holds once a job trains with so many pipelines and has committed a round of them.
func (r *rig) pipelines(n int) func(*cluster.Job) bool {
	return func(j *cluster.Job) bool {
		s, err := r.Spec(j)
		return err == nil && j.State == cluster.Running && int(s.Job.Pipelines) == n && j.CommittedRound() > 0 && len(j.LastCommitted().Cursors) == n
	}
}

// TestGroupsLoseStagesOnlyOnceANodeIsGoneForGood: two groups of two stages, each on two nodes with a core each, are whole until the members agree that a node is gone.
// Then one is left; once it loses a node as well, it keeps its stages for as long as any job.
func TestGroupsLoseStagesOnlyOnceANodeIsGoneForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c", "d")
		defer r.end()
		id := r.submitModel(2, func(j *job.Job) { j.Pipelines, j.Groups, j.Center.Replicas = 2, 2, 4 })
		r.until(id, "commits", r.pipelines(2))
		r.at(3).partition()
		r.change(3, func(n *coordinator.Node) { n.Reach = coordinator.Reach{Since: time.Now(), Why: "it has not answered"} })
		r.breakLinks()
		time.Sleep(2 * time.Minute)
		if j := r.until(id, "is there", func(*cluster.Job) bool { return true }); j.Generation != 1 || !r.Published().Jobs[id].Waits {
			t.Fatalf("nobody agrees that d is gone, and it is generation %d: %s", j.Generation, j.Reason)
		}
		r.change(3, func(n *coordinator.Node) { n.Reach.Down = true })
		j := r.until(id, "goes on with one group", r.pipelines(1))
		if ofJob, ofRound := r.stages(j); ofJob != 2 || ofRound != 2 {
			t.Errorf("one group has %d stages, its round %d", ofJob, ofRound)
		}
		r.change(2, func(n *coordinator.Node) { n.Draining = true }) // no spare
		for _, node := range []int{0, 1} {
			if !strings.Contains(string(j.Placement), `"`+r.nodes[node].Name+`"`) {
				t.Fatalf("placed %s", j.Placement)
			}
		}
		lost := time.Now()
		r.lose(1)
		j = r.until(id, "goes on with one stage", r.with(1))
		if after := time.Since(lost); after < time.Minute {
			t.Errorf("it has fewer stages after %v: %s", after, j.Reason)
		}
	})
}

// TestADrainedNodeOfAGroupIsExpectedBack, until it is gone for as long as a node of any job.
func TestADrainedNodeOfAGroupIsExpectedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submitModel(1, func(j *job.Job) { j.Pipelines, j.Groups = 2, 2 })
		r.until(id, "commits", r.pipelines(2))
		r.change(1, func(n *coordinator.Node) { n.Draining = true })
		r.until(id, "waits", func(*cluster.Job) bool { return r.Published().Jobs[id].Waits })
		lost := time.Now()
		r.lose(1)
		r.until(id, "goes on with one group", r.pipelines(1))
		if after := time.Since(lost); after < time.Minute {
			t.Errorf("it goes on without the node after %v", after)
		}
	})
}
