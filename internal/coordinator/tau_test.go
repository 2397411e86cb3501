package coordinator_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/job"
)

// openTau makes a job's pipelines two groups of one stage whose step computes for 300 ms, with a tau that is left open.
func openTau(j *job.Job) {
	lateLayers(j)
	j.Averaging.Method, j.Averaging.Tau, j.Averaging.TauMost = "elastic", 1, 8
}

// tau waits until a generation of a job runs, and has committed. It returns what status says of its tau, with which the spec of the workers agrees.
func (r *rig) tau(id string, generation uint64) *api.Tau {
	r.t.Helper()
	j := r.until(id, "commits", func(j *cluster.Job) bool {
		return committed(j) && j.Generation == generation && j.State == cluster.Running
	})
	s, err := r.Spec(j)
	if err != nil {
		r.t.Fatal(err)
	}
	tau := coordinator.Status(j, s, r.Published().Jobs[id]).Tau
	if tau == nil || s.Job.Averaging.Tau != tau.Steps || s.TauOpen() || s.Budget.Steps%uint64(tau.Steps) != 0 || !slices.Contains(s.Why, "averaging."+tau.Why) {
		r.t.Fatalf("tau %+v, in the spec %+v: %q", tau, s.Job.Averaging, s.Why)
	}
	return tau
}

// TestTauIsChosenWhereAJobIsPlaced, by the link between its groups: 1 over a fast one, more over one that does not carry an exchange in a step. Status says which and why. Who goes on from a committed round keeps it, also
// when the link has become another.
func TestTauIsChosenWhereAJobIsPlaced(t *testing.T) {
	for bytes, several := range map[int64]bool{1e9: false, 2e3: true} {
		synctest.Test(t, func(t *testing.T) {
			r, rate := newPacedRig(t, bytes)
			defer r.end()
			id := r.submitModel(1, openTau)
			first := r.tau(id, 1)
			if first.Steps > 1 != several || several && first.StepS >= first.LeastS || !strings.Contains(first.Why, "over the link a-b with ") {
				t.Errorf("over a link of %d bytes a second: %+v", bytes, first)
			}
			r.cancel(id)
			other := map[int64]int64{1e9: 2e3, 2e3: 1e9}[bytes]
			rate.Store(other)
			time.Sleep(11 * time.Minute)
			r.measured(float64(other))
			j, err := r.raft.State().Job(id)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.raft.Apply(t.Context(), &cluster.ResumeJob{Job: id, Generation: j.Generation, Reason: "resumed", Was: j.State}); err != nil {
				t.Fatal(err)
			}
			if again := r.tau(id, j.Generation+1); again.Steps != first.Steps || !strings.Contains(again.Why, "as in the rounds that are committed") {
				t.Errorf("resumed: %+v, before %+v", again, first)
			}
			r.cancel(id)
		})
	}
}
