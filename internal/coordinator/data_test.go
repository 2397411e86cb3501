package coordinator_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/pinned"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
)

// bare is an agent of a host that lacks something.
type bare struct {
	agent.Agent
	lacks *atomic.Pointer[agent.Sight]
	looks *atomic.Int64
}

func (b bare) Look(context.Context, *spec.Spec) (agent.Sight, error) {
	b.looks.Add(1)
	return *b.lacks.Load(), nil
}

// fromElsewhere makes what a rig's jobs read come from a bucket.
func fromElsewhere(s *spec.Spec) {
	s.Remote = []pinned.Object{{Entry: "s3://bucket/x", URL: "s3://bucket/x", Name: "x", Bytes: 1, ETag: "e"}}
}

// strip makes a node of a rig lack something. What it lacks can be changed.
func (r *rig) strip(node int, what agent.Sight) bare {
	b := bare{lacks: &atomic.Pointer[agent.Sight]{}, looks: &atomic.Int64{}}
	b.lacks.Store(&what)
	r.change(node, func(n *coordinator.Node) {
		b.Agent = n.Agent
		n.Agent = b
	})
	return b
}

// nodesOf are those of the stages of a job.
func nodesOf(t *testing.T, j *cluster.Job) (all []string) {
	t.Helper()
	var places []struct{ Node string }
	if err := json.Unmarshal(j.Placement, &places); err != nil {
		t.Fatal(err)
	}
	for _, p := range places {
		all = append(all, p.Node)
	}
	return all
}

// TestAllStagesAreWhereTheDataAre, also those between the first and the last, whether a job begins or goes on from a round.
func TestAllStagesAreWhereTheDataAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c", "d")
		defer r.end()
		b := r.strip(1, agent.Sight{Data: "data.files: there is no /data"})
		id := r.submitWith("long", 1e6, func(j *job.Job) { j.Stages, j.Center.Replicas = 3, 2 })
		got := nodesOf(t, r.until(id, "commits", committed))
		if slices.Sort(got); strings.Join(got, " ") != "a c d" {
			t.Fatalf("it began on %v", got)
		}
		middle := nodesOf(t, r.until(id, "is there", func(*cluster.Job) bool { return true }))[1]
		r.change(strings.Index("abcd", middle), func(n *coordinator.Node) { n.Draining = true })
		time.Sleep(time.Minute)
		if got := nodesOf(t, r.until(id, "is there", func(*cluster.Job) bool { return true })); slices.Contains(got, "b") {
			t.Errorf("it goes on on %v", got)
		}
		b.lacks.Store(&agent.Sight{})
		r.until(id, "trains on b", func(j *cluster.Job) bool { return isRunning(j) && slices.Contains(nodesOf(t, j), "b") })
	})
}

// TestAJobWaitsForWhatItReads, says where what is missing, and starts when somebody has put it there. It is not looked for all the time.
func TestAJobWaitsForWhatItReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		b := r.strip(1, agent.Sight{Model: "model.from: there is no /model"})
		id := r.submit("good", 50)
		small := r.submitWith("small", 50, func(j *job.Job) { j.Stages = 1 })
		if j := r.until(small, "ends", ended); j.State != cluster.Done { // it takes the room that the other cannot have
			t.Errorf("%s: %s", j.State, j.Reason)
		}
		time.Sleep(time.Minute)
		j := r.until(id, "is there", func(*cluster.Job) bool { return true })
		note := r.Published().Jobs[id].Note
		if n := b.looks.Load(); j.State != cluster.Queued || !strings.Contains(note, "b: model.from: there is no /model") || n < 3 || n > 10 {
			t.Errorf("%s after %d looks: %s", j.State, n, note)
		}
		b.lacks.Store(&agent.Sight{})
		if j := r.until(id, "ends", ended); j.State != cluster.Done {
			t.Errorf("%s: %s", j.State, j.Reason)
		}
	})
}

// TestARoundNeedsNoModel: a job that goes on elsewhere from a round needs the data, and not what it began with.
func TestARoundNeedsNoModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		r.strip(1, agent.Sight{Model: "model.from: there is no /model"})
		id := r.submitWith("long", 1e6, func(j *job.Job) { j.Stages, j.Center.Replicas = 1, 2 })
		j := r.until(id, "commits", committed)
		if got := nodesOf(t, j); got[0] != "a" {
			t.Fatalf("it began on %v", got)
		}
		r.change(0, func(n *coordinator.Node) { n.Draining = true })
		r.until(id, "trains on b", func(j *cluster.Job) bool { return committed(j) && nodesOf(t, j)[0] == "b" })
	})
}

// TestAJobStartsWhenItsDataHaveCome, and says until then how far that is.
func TestAJobStartsWhenItsDataHaveCome(t *testing.T) {
	for _, nodes := range [][]string{{"a"}, {"a", "b"}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nodes...)
			defer r.end()
			last := r.strip(len(nodes)-1, agent.Sight{Fetching: "1 GB of 2 GB of its data have been fetched"})
			id := r.submitSpec("good", 50, fromElsewhere)
			time.Sleep(30 * time.Second)
			j := r.until(id, "is there", func(*cluster.Job) bool { return true })
			want := nodes[len(nodes)-1] + ": 1 GB of 2 GB of its data have been fetched"
			note := r.Published().Jobs[id].Note
			if n := last.looks.Load(); j.State != cluster.Queued || !strings.Contains(note, want) || n < 10 || n > 40 {
				t.Errorf("%s after %d looks: %s", j.State, n, note)
			}
			last.lacks.Store(&agent.Sight{})
			if j := r.until(id, "ends", ended); j.State != cluster.Done {
				t.Errorf("%s: %s", j.State, j.Reason)
			}
		})
	}
}

// TestANodeThatCannotFetchGetsNothing of a job, also between others; where there is no other, the job says so and waits.
func TestANodeThatCannotFetchGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		a := r.strip(0, agent.Sight{Data: "data.files: the store cannot be used now"})
		one := r.submitSpec("small", 50, func(s *spec.Spec) { fromElsewhere(s); s.Job.Stages = 1 })
		if j := r.until(one, "ends", ended); j.State != cluster.Done || nodesOf(t, j)[0] != "b" {
			t.Errorf("%s on %v: %s", j.State, nodesOf(t, j), j.Reason)
		}
		two := r.submitSpec("good", 50, fromElsewhere)
		time.Sleep(time.Minute)
		if note := r.Published().Jobs[two].Note; !strings.Contains(note, "a: data.files: the store cannot be used now") {
			t.Errorf("it says: %s", note)
		}
		a.lacks.Store(&agent.Sight{})
		if j := r.until(two, "ends", ended); j.State != cluster.Done {
			t.Errorf("%s: %s", j.State, j.Reason)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a")
		defer r.end()
		a := r.strip(0, agent.Sight{Data: "data.files: the store cannot be used now"})
		id := r.submitSpec("good", 50, fromElsewhere)
		time.Sleep(time.Minute)
		if note := r.Published().Jobs[id].Note; !strings.Contains(note, "data.files: the store cannot be used now") {
			t.Errorf("alone it says: %s", note)
		}
		a.lacks.Store(&agent.Sight{})
		if j := r.until(id, "ends", ended); j.State != cluster.Done {
			t.Errorf("%s: %s", j.State, j.Reason)
		}
	})
}

// TestAJobWhoseDataAreGoneEnds, once no node has them.
func TestAJobWhoseDataAreGoneEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		gone := agent.Sight{Data: "data.files: replaced", Gone: "data.files: replaced"}
		r.strip(0, gone)
		b := r.strip(1, agent.Sight{})
		small := func(s *spec.Spec) { fromElsewhere(s); s.Job.Stages = 1 }
		if j := r.until(r.submitSpec("first", 50, small), "ends", ended); j.State != cluster.Done || nodesOf(t, j)[0] != "b" {
			t.Errorf("one node has them: %s on %v: %s", j.State, nodesOf(t, j), j.Reason)
		}
		b.lacks.Store(&gone)
		if j := r.until(r.submitSpec("second", 50, small), "ends", ended); j.State != cluster.Failed || !strings.HasPrefix(j.Reason, "data.files: replaced") {
			t.Errorf("no node has them: %s: %s", j.State, j.Reason)
		}
	})
}
