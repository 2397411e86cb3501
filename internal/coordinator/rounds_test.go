package coordinator_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// shardPath is where a node keeps a shard.
func (r *rig) shardPath(node int, id string, d shard.Digest) string {
	return filepath.Join(control.ShardDir(agent.JobDir(r.at(node).state, id)), shard.File(d))
}

// TestAShardIsTakenFromWhicheverNodeHasIt, also one that the round does not name, as one that has read it from a bucket.
func TestAShardIsTakenFromWhicheverNodeHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submit("long", 1e6)
		r.until(id, "commits", committed)
		r.kill(1)
		newest := r.until(id, "is known", func(*cluster.Job) bool { return true }).LastCommitted()
		d := newest.Shards[1].Digest
		if err := os.Rename(r.shardPath(1, id, d), r.shardPath(0, id, d)); err != nil {
			t.Fatal(err)
		}
		if err := r.CheckFiles(t.Context(), id, newest); err != nil {
			t.Error(err)
		}
		j := r.until(id, "commits further", func(j *cluster.Job) bool { return j.CommittedRound() > newest.Round })
		if !strings.Contains(j.Reason, "resumed from round") || j.Generation != 2 {
			t.Errorf("generation %d: %s", j.Generation, j.Reason)
		}
	})
}

// TestFilesOfARoundAreLookedForOnAllNodes: one that cannot be reached is named, and its files are not said to be lost.
func TestFilesOfARoundAreLookedForOnAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		id := r.submitWith("good", 450, twoStages)
		m := r.until(id, "ends", ended).LastCommitted()
		if err := r.CheckFiles(t.Context(), id, m); err != nil {
			t.Error(err)
		}
		on := placementNode(r, id, 1)
		r.at(on).partition()
		r.change(on, func(n *coordinator.Node) {
			n.Reach = coordinator.Reach{Since: time.Now(), Down: true, Why: "it is gone"}
		})
		err := r.CheckFiles(t.Context(), id, m)
		if what := obstacle.Of(err); what == nil || what.Kind != obstacle.Node || !strings.Contains(err.Error(), "is on node "+r.nodes[on].Name+", which cannot be reached") {
			t.Errorf("%v", err)
		}
		r.at(on).heal()
		r.change(on, func(n *coordinator.Node) { n.Reach = coordinator.Reach{} })
	})
}

// TestANodeThatIsDrainedTakesCopiesWhereNoOtherCan: a commit neither waits for one in vain nor has too few.
func TestANodeThatIsDrainedTakesCopiesWhereNoOtherCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for others := range 2 {
			r := newRig(t, []string{"a", "b", "c"}[:2+others]...)
			r.change(1, func(n *coordinator.Node) { n.Draining = true })
			id := r.submitWith("long", 1e6, func(j *job.Job) { j.Stages, j.Center.Replicas = 1, 2 })
			nodes := r.until(id, "commits", committed).LastCommitted().Shards[0].Nodes
			if len(nodes) != 2 || slices.Contains(nodes, "b") != (others == 0) {
				t.Errorf("of %d nodes, b drained, the shard is on %v", 2+others, nodes)
			}
			r.end()
		}
	})
}

// TestWhatOnlyADrainedNodeHasIsCopied, also of a job that keeps one copy, and though another shard of it cannot be read.
func TestWhatOnlyADrainedNodeHasIsCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		r.change(0, func(n *coordinator.Node) { n.Draining = true })
		r.change(2, func(n *coordinator.Node) { n.Draining = true })
		one := func(j *job.Job) { j.Stages, j.Center.Keep = 1, 2 }
		lost, id := r.submitWith("lost", 450, one), r.submitWith("good", 450, one)
		for _, of := range []string{lost, id} {
			for _, m := range r.until(of, "ends", ended).Committed {
				if nodes := m.Shards[0].Nodes; !slices.Equal(nodes, []string{"b"}) {
					t.Fatalf("round %d of job %s is on %v", m.Round, of, nodes)
				}
			}
		}
		j, err := r.raft.State().Job(lost)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(r.shardPath(1, lost, j.LastCommitted().Shards[0].Digest)); err != nil {
			t.Fatal(err)
		}
		r.change(1, func(n *coordinator.Node) { n.Draining = true })
		time.Sleep(10 * time.Minute)
		for _, m := range r.until(id, "has ended", ended).Committed {
			if nodes := m.Shards[0].Nodes; len(nodes) != 1 {
				t.Errorf("no other node takes copies, and round %d is on %v", m.Round, nodes)
			}
		}
		r.change(2, func(n *coordinator.Node) { n.Draining = false })
		onC := func(m *cluster.Manifest) bool { return slices.Contains(m.Shards[0].Nodes, "c") }
		r.until(id, "is on c", func(j *cluster.Job) bool {
			return !slices.ContainsFunc(j.Committed, func(m *cluster.Manifest) bool { return !onC(m) })
		})
		for _, m := range r.until(id, "has ended", ended).Committed {
			if _, err := r.at(2).Shards(id).Verify(t.Context(), m.Shards[0].Digest); err != nil {
				t.Errorf("round %d: %v", m.Round, err)
			}
		}
		r.until(lost, "has its other round on c", func(j *cluster.Job) bool { return onC(j.Committed[0]) && !onC(j.LastCommitted()) })
	})
}

// placementNode is the index of the node that has a stage.
func placementNode(r *rig, id string, stage int) int {
	for i, n := range r.members() {
		if strings.Contains(placement(r, id), `"stage":`+string(rune('0'+stage))+`,"node":"`+n.Name+`"`) {
			return i
		}
	}
	r.t.Fatalf("placed %s", placement(r, id))
	return 0
}

// TestAJobWaitsForShardsWhereTheyShouldBe: the node is named that has lost them, and what is in the way has passed once it has passed there.
func TestAJobWaitsForShardsWhereTheyShouldBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		on := placementNode(r, id, 1)
		if on == 0 { // the coordinator's own
			on = placementNode(r, id, 2)
		}
		name := r.nodes[on].Name
		shards := control.ShardDir(agent.JobDir(r.at(on).state, id))
		if err := os.Rename(shards, shards+".away"); err != nil {
			t.Fatal(err)
		}
		r.kill(on)
		j := r.until(id, "waits", func(*cluster.Job) bool { return r.Published().Jobs[id].Waits })
		if note := r.Published().Jobs[id].Note; !strings.Contains(note, "node "+name+": ") || !strings.Contains(note, "is missing") {
			t.Errorf("it waits: %q", note)
		}
		err := r.CheckFiles(t.Context(), id, j.LastCommitted())
		if what := obstacle.Of(err); what == nil || what.Kind != obstacle.Missing || !strings.Contains(err.Error(), "node "+name+": ") {
			t.Errorf("its files are looked at: %v", err)
		}
		if m, err := r.Usable(t.Context(), id, j.Committed); m != nil || err != nil {
			t.Errorf("round %v can be used, %v", m, err)
		}
		if err := os.Rename(shards+".away", shards); err != nil {
			t.Fatal(err)
		}
		r.until(id, "goes on", func(j *cluster.Job) bool { return j.CommittedRound() > before })
		if m, err := r.Usable(t.Context(), id, j.Committed); m == nil || m.Round != j.CommittedRound() || err != nil {
			t.Errorf("round %v can be used, %v; %d is committed", m, err, j.CommittedRound())
		}
	})
}

// TestRoundsThatAPersonGivesUpAreKeptAside on every node that has shards of them.
func TestRoundsThatAPersonGivesUpAreKeptAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		id := r.submitWith("long", 1e6, func(j *job.Job) { j.Stages, j.Center.Replicas, j.Center.Keep = 3, 2, 2 })
		r.until(id, "has two rounds", func(j *cluster.Job) bool { return len(j.Committed) == 2 })
		if _, err := r.raft.Apply(t.Context(), &cluster.RequestCancel{Job: id, Reason: "cancelling"}); err != nil {
			t.Fatal(err)
		}
		was := r.until(id, "ends", ended)
		older, newest := was.Committed[len(was.Committed)-2], was.LastCommitted()
		if _, err := r.raft.Apply(t.Context(), &cluster.ResumeJob{Job: id, Generation: was.Generation, Round: older.Round, Reason: "resumed"}); err != nil {
			t.Fatal(err)
		}
		r.until(id, "commits further", func(j *cluster.Job) bool { return j.CommittedRound() > newest.Round })
		kept := map[string]int{}
		for k, s := range newest.Shards {
			if len(s.Nodes) != 2 {
				t.Fatalf("the shard of stage %d is on %v", k, s.Nodes)
			}
			for i, n := range r.members() {
				aside, err := filepath.Glob(filepath.Join(control.QuarantineDir(agent.JobDir(r.at(i).state, id)), "*", shard.File(s.Digest)))
				if err != nil || len(aside) > 1 || (len(aside) == 1) != slices.Contains(s.Nodes, n.Name) {
					t.Errorf("the shard of stage %d was on %v; aside on %s: %v, %v", k, s.Nodes, n.Name, aside, err)
				}
				kept[n.Name] += len(aside)
			}
		}
		if len(kept) != 3 || kept["a"]+kept["b"]+kept["c"] != 6 {
			t.Errorf("kept aside: %v", kept)
		}
	})
}
