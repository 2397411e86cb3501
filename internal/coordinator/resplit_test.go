package coordinator_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
)

// lose cuts a node off, as all members agree, and with it the workers elsewhere that depend on it.
func (r *rig) lose(node int) {
	r.t.Helper()
	r.at(node).partition()
	r.change(node, func(n *coordinator.Node) {
		n.Reach = coordinator.Reach{Since: time.Now(), Down: true, Why: "it is gone"}
	})
	r.breakLinks()
}

// breakLinks ends the workers on all nodes that answer, as when their links to another one break.
func (r *rig) breakLinks() {
	r.t.Helper()
	for i := range r.nodes {
		if !r.members()[i].Reach.Since.IsZero() {
			continue
		}
		for _, w := range r.running(i) {
			if err := r.nodes[i].Agent.Kill(r.t.Context(), w.Process); err != nil {
				r.t.Error(err)
			}
		}
	}
}

// bring has a node back.
func (r *rig) bring(node int) {
	r.at(node).heal()
	r.change(node, func(n *coordinator.Node) { n.Reach = coordinator.Reach{} })
}

// submitModel submits a job of so many stages whose model is known, so that it can be split anew.
func (r *rig) submitModel(stages int, change func(*job.Job)) string {
	return r.submitSpec("long", 1e6, func(s *spec.Spec) {
		s.Model = json.RawMessage(`{"model_type": "gpt2", "vocab_size": 16, "n_positions": 4, "n_embd": 4, "n_layer": 3, "n_head": 1}`)
		s.Job.Model.Config["n_layer"], s.Job.Stages, s.Job.Center.Replicas = 3, job.Count(stages), 2
		s.Job.Center.CommitEvery = 500
		s.Job.Devices.Kind, s.Job.Devices.CPU.Count, s.Job.Tuning = "cpu", job.Count(stages), job.TuneByRules
		change(&s.Job)
	})
}

func asItIs(*job.Job) {}

// twice holds once a job trains and the last round's shard of a stage is on two nodes.
func twice(stage int) func(*cluster.Job) bool {
	return func(j *cluster.Job) bool { return committed(j) && len(j.LastCommitted().Shards[stage].Nodes) == 2 }
}

// stages is how many a job has, and that its last round has.
func (r *rig) stages(j *cluster.Job) (ofJob, ofRound int) {
	s, err := spec.Decode(j.ID, j.Spec, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return s.Stages(), len(j.LastCommitted().Shards)
}

// with holds once a job trains with so many stages and has committed a round of them.
func (r *rig) with(stages int) func(*cluster.Job) bool {
	return func(j *cluster.Job) bool {
		ofJob, ofRound := r.stages(j)
		return j.State == cluster.Running && ofJob == stages && ofRound == stages
	}
}

// TestAModelIsSplitAnewOverTheNodesThatAreLeft, from the last committed round, one loss after the other; and again over all of them once they are back.
func TestAModelIsSplitAnewOverTheNodesThatAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		r.mu.Lock()
		r.resplitAfter = 10 * time.Second
		r.mu.Unlock()
		id := r.submitModel(3, asItIs)
		before := r.until(id, "has copies", twice(2))
		r.lose(2)
		time.Sleep(5 * time.Second)
		j := r.until(id, "waits", func(*cluster.Job) bool { return r.Published().Jobs[id].Waits })
		if n, _ := r.stages(j); n != 3 {
			t.Fatalf("%d stages 5 s after the loss: %s", n, j.Reason)
		}
		j = r.until(id, "goes on with two stages", r.with(2))
		if j.CommittedRound() <= before.CommittedRound() || r.Counts.Deaths.Load() > 2 { // the two that lost their peer
			t.Errorf("round %d, %d before; %d deaths", j.CommittedRound(), before.CommittedRound(), r.Counts.Deaths.Load())
		}
		for _, want := range []string{"split anew, from 3 stages into 2: node c is gone for more than 10s: it is gone", "resumed from round"} {
			if !strings.Contains(j.Reason, want) {
				t.Errorf("the reason is %q, without %q", j.Reason, want)
			}
		}
		contiguous(t, j)
		r.until(id, "has copies of two stages", twice(1))
		r.lose(1)
		r.until(id, "goes on with one stage", r.with(1))
		r.bring(1)
		r.bring(2)
		j = r.until(id, "has its three stages again", r.with(3))
		if !strings.Contains(j.Reason, "split again into 3 stages, from 1: there is room for its 3 stages again") {
			t.Error(j.Reason)
		}
		contiguous(t, j)
		s, err := spec.Decode(id, j.Spec, nil)
		if err != nil || s.Before != nil || !strings.Contains(fmt.Sprint(s.Why), "split again into 3 stages") {
			t.Errorf("its spec has Before %s, why %q (%v)", s.Before, s.Why, err)
		}
		time.Sleep(35 * time.Second) // until all processes of nodes were looked at again
		for i := range r.nodes {
			if all := r.workers(i); len(all) != 1 || all[0].Process.Generation != j.Generation {
				t.Errorf("on %s: %+v", r.nodes[i].Name, all)
			}
		}
	})
}

// contiguous checks that the rounds behind the last committed one follow each other without a gap in rounds or samples.
func contiguous(t *testing.T, j *cluster.Job) {
	t.Helper()
	for i := 1; i < len(j.Lineage); i++ {
		if was, now := j.Lineage[i-1], j.Lineage[i]; was.ToRound != now.FromRound || was.ToSample != now.FromSample {
			t.Errorf("lineage %+v", j.Lineage)
		}
	}
	if last := j.Lineage[len(j.Lineage)-1]; last.ToRound != j.CommittedRound() || last.ToSample != j.LastCommitted().SamplesSeen {
		t.Errorf("round %d of %d samples, lineage %+v", j.CommittedRound(), j.LastCommitted().SamplesSeen, j.Lineage)
	}
}

// TestAJobKeepsItsStages where nobody knows that its node is gone for good, where its shards cannot be read, and where its file says so.
func TestAJobKeepsItsStages(t *testing.T) {
	cases := map[string]struct {
		change func(*job.Job)
		lose   func(r *rig, id string)
		says   string
	}{
		"its file says so": {
			func(j *job.Job) { j.MinStages = 2 }, func(r *rig, _ string) { r.lose(1) }, "its model is not split anew: min_stages is 2",
		},
		"a shard is only on the node that is gone": {
			func(j *job.Job) { j.Center.Replicas = 1 }, func(r *rig, _ string) { r.lose(1) }, "is on node b, which cannot be reached",
		},
		"the members do not agree that it is gone": {
			asItIs, func(r *rig, _ string) {
				r.lose(1)
				r.change(1, func(n *coordinator.Node) { n.Reach.Down = false })
			}, "node b cannot be reached",
		},
		"its workers go on": {
			asItIs, func(r *rig, _ string) {
				r.at(1).partition()
				r.change(1, func(n *coordinator.Node) {
					n.Reach = coordinator.Reach{Since: time.Now(), Down: true, Why: "it is gone"}
				})
			}, "left alone",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, "a", "b")
				defer r.end()
				id := r.submitModel(2, c.change)
				r.until(id, "commits", committed)
				c.lose(r, id)
				time.Sleep(2 * time.Minute)
				j := r.until(id, "is there", func(*cluster.Job) bool { return true })
				if n, _ := r.stages(j); n != 2 || j.Generation != 1 {
					t.Errorf("%d stages, generation %d: %s", n, j.Generation, j.Reason)
				}
				r.until(id, "says "+c.says, func(*cluster.Job) bool { return strings.Contains(r.Published().Jobs[id].Note, c.says) })
				r.bring(1)
				j = r.until(id, "goes on", func(now *cluster.Job) bool {
					return now.State == cluster.Running && now.CommittedRound() > j.CommittedRound()
				})
				if n, _ := r.stages(j); n != 2 {
					t.Errorf("%d stages: %s", n, j.Reason)
				}
			})
		})
	}
}

// TestAJobAllOfWhoseNodesAreAwayIsNotSplitAnew: they may be together, and their workers may go on. Once a person has removed them, it is.
func TestAJobAllOfWhoseNodesAreAwayIsNotSplitAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		r.change(0, func(n *coordinator.Node) { n.Draining = true })
		id := r.submitModel(2, func(j *job.Job) { j.Center.Replicas = 3 })
		r.until(id, "commits", committed)
		r.change(0, func(n *coordinator.Node) { n.Draining = false })
		r.until(id, "has copies", func(j *cluster.Job) bool { return len(j.LastCommitted().Shards[1].Nodes) == 3 })
		r.lose(1)
		r.lose(2)
		time.Sleep(5 * time.Minute)
		j := r.until(id, "is there", func(*cluster.Job) bool { return true })
		if n, _ := r.stages(j); n != 2 || j.Generation != 1 {
			t.Fatalf("%d stages, generation %d: %s", n, j.Generation, j.Reason)
		}
		r.mu.Lock()
		gone := []*fragile{r.nodes[1].Agent.(*fragile), r.nodes[2].Agent.(*fragile)}
		r.nodes = r.nodes[:1]
		r.mu.Unlock()
		j = r.until(id, "goes on with one stage", r.with(1))
		if !strings.Contains(j.Reason, "node b was removed from the cluster") {
			t.Error(j.Reason)
		}
		for _, at := range gone {
			all, err := at.Local.Processes(t.Context())
			if err != nil {
				t.Error(err)
			}
			for _, w := range all {
				if err := at.Local.Kill(t.Context(), w.Process); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// TestALeaderThatNeverHeardOfALostNodeSplitsItsJobAnew, and does not take it for one that asks for more than there is, which would have all of it on one node.
func TestALeaderThatNeverHeardOfALostNodeSplitsItsJobAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer func() { r.end() }()
		id := r.submitModel(3, asItIs)
		r.until(id, "has copies", twice(2))
		r.leave()
		r.change(2, func(n *coordinator.Node) { n.Cores = nil })
		r.lose(2)
		r.start()
		j := r.until(id, "goes on with two stages", r.with(2))
		if !strings.Contains(j.Reason, "split anew, from 3 stages into 2: node c is gone") {
			t.Error(j.Reason)
		}
	})
}
