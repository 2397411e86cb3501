package coordinator_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/model"
)

// submitDeep submits a job of two stages of a model of 12 blocks.
func (r *rig) submitDeep(name string, rounds uint64, change func(*job.Job)) string {
	r.t.Helper()
	s := agenttest.Assignment("", name, 0, rounds).Spec
	j := &s.Job
	j.Stages, j.MicroBatches, j.Schedule, j.Train.Steps, j.Center.CommitEvery, j.Devices.CPU.Threads = 2, 2, "1f1b", int(rounds), 100, 1
	j.Model.Config["n_layer"] = 12
	change(j)
	m, err := model.Build(j.Model.Family, j.Model.Config)
	if err != nil {
		r.t.Fatal(err)
	}
	if s.Model, err = json.Marshal(m.Config()); err != nil {
		r.t.Fatal(err)
	}
	text, err := spec.Encode(&s)
	if err != nil {
		r.t.Fatal(err)
	}
	result, err := r.raft.Apply(r.t.Context(), &cluster.SubmitJob{Name: name, Spec: text, Submitted: time.Now()})
	if err != nil {
		r.t.Fatal(err)
	}
	return result.Job
}

func isRunning(j *cluster.Job) bool { return j.State == cluster.Running }

// TestAJobOverNodesIsCutForThem: the slower node gets fewer layers, the reason says so, and a coordinator that takes over has the same cut.
func TestAJobOverNodesIsCutForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		r.change(0, func(n *coordinator.Node) { n.GFLOPs = 100 })
		r.change(1, func(n *coordinator.Node) { n.GFLOPs = 50 })
		id := r.submitDeep("good-at-1", 4000, func(*job.Job) {})
		j := r.until(id, "runs", isRunning)
		s, err := r.Spec(j)
		if err != nil {
			t.Fatal(err)
		}
		split := s.Split()
		if len(split) != 2 || split[0][1] <= 7 || split[1][1] != 14 || s.Report != nil {
			t.Fatalf("the job is cut into %v: want more than half of 14 layers on a, which is twice as fast", split)
		}
		log, err := os.ReadFile(control.LogPath(agent.JobDir(r.agent.state, id)))
		if want := "by the speed of the nodes and their links"; err != nil || !strings.Contains(string(log), want) {
			t.Errorf("the log (%v) has no %q: %s", err, want, log)
		}
		r.leave()
		r.raft.failed = make(chan struct{})
		r.start()
		r.until(id, "runs", isRunning)
		if again, err := r.Spec(j); err != nil || again.Split()[0] != split[0] {
			t.Errorf("the next coordinator has the job cut into %v (%v), it was %v", again.Split(), err, split)
		}
		r.until(id, "ends", ended)
	})
}

// TestALinkBetweenNodesThatBecameSlowIsNamed by the drift of a job whose stages are on two of them.
func TestALinkBetweenNodesThatBecameSlowIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		r.link()
		id := r.submitDeep("slow-link-at-100", 1<<20, func(j *job.Job) { j.Pipelines, j.Tuning = job.Auto, job.TuneByProfile })
		r.until(id, "runs", isRunning)
		for range 600 {
			if d := r.Published().Jobs[id].Drift; d != nil {
				if !strings.Contains(d.Text, "transfer between stages 0 and 1, 3.5ms instead of ") {
					t.Errorf("drift: %+v", d)
				}
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Errorf("a minute later nobody has seen drift: %+v", r.Published().Jobs[id].Status)
	})
}
