package coordinator_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/job"
)

// paced is an agent whose links carry so many bytes a second, which a test changes.
type paced struct {
	agent.Agent
	rate *atomic.Int64
}

func (p paced) Probe(ctx context.Context, _ string) (agent.Link, error) {
	return agent.Link{RTT: time.Microsecond, BytesPerSecond: float64(p.rate.Load())}, ctx.Err()
}

// lateLayers makes a job's pipelines two groups of one stage whose step computes for 300 ms, with a number of late layers that is left open.
func lateLayers(j *job.Job) {
	inGroups(j)
	j.Pipelines, j.MicroBatches = 2, 1
	j.Averaging.Method, j.Averaging.StaleLayers, j.Averaging.RateScale = "sapipe", job.Auto, 1
	j.Devices.Kind, j.Devices.Emulated.Forward, j.Devices.Emulated.Count = job.KindEmulated, []time.Duration{100 * time.Millisecond}, 1
}

// measured waits until the link of a rig's nodes is known to carry so many bytes a second. One whose first measurement failed is tried again after a minute.
func (r *rig) measured(bytes float64) {
	r.t.Helper()
	for range 120 {
		for _, l := range r.Published().Links {
			if math.Abs(l.BitsPerSecond/(8*bytes)-1) < 1e-6 {
				return
			}
		}
		time.Sleep(time.Second)
	}
	r.t.Fatalf("the link is not measured: %v", r.Published().Links)
}

// TestLateLayersAreChosenWhereAJobIsPlaced, by the link between its groups: none over a fast one, which carries all behind the backward, some over one that does not. The status says which and why.
// Workers that start again have what they had.
func TestLateLayersAreChosenWhereAJobIsPlaced(t *testing.T) {
	for rate, some := range map[int64]bool{1e9: false, 20e3: true} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := newPacedRig(t, rate)
			defer r.end()
			id := r.submitModel(1, lateLayers)
			first := r.chosen(id, 1)
			if first.Layers > 0 != some || some && first.StepS > 0.99*first.NoneS || !some && first.StepS > 1.01*first.ComputeS || !strings.Contains(first.Why, "over the link a-b with ") {
				t.Errorf("over a link of %d bytes a second: %+v", rate, first)
			}
			r.kill(1)
			if again := r.chosen(id, 2); again.Layers != first.Layers {
				t.Errorf("workers that start again have %+v, before %+v", again, first)
			}
			r.cancel(id)
		})
	}
}

// TestLateLayersAreChosenAnewByWhoResumesAJob, when the link was measured again and has become another.
func TestLateLayersAreChosenAnewByWhoResumesAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, rate := newPacedRig(t, 20e3)
		defer r.end()
		id := r.submitModel(1, lateLayers)
		slow := r.chosen(id, 1)
		r.cancel(id)
		rate.Store(1e9)
		time.Sleep(11 * time.Minute)
		r.measured(1e9)
		j, err := r.raft.State().Job(id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.raft.Apply(t.Context(), &cluster.ResumeJob{Job: id, Generation: j.Generation, Reason: "resumed", Was: j.State}); err != nil {
			t.Fatal(err)
		}
		if fast := r.chosen(id, j.Generation+1); slow.Layers == 0 || fast.Layers != 0 {
			t.Errorf("over a slow link %+v, resumed over a fast one %+v", slow, fast)
		}
		r.cancel(id)
	})
}

// newPacedRig is a rig of two nodes whose link is known to carry so many bytes a second.
func newPacedRig(t *testing.T, bytes int64) (*rig, *atomic.Int64) {
	t.Helper()
	r, rate := newRig(t, "a", "b"), &atomic.Int64{}
	rate.Store(bytes)
	for i := range r.members() {
		r.change(i, func(n *coordinator.Node) { n.Agent = paced{n.Agent, rate} })
	}
	r.measured(float64(bytes))
	return r, rate
}

// cancel cancels a job and waits for its end.
func (r *rig) cancel(id string) {
	r.t.Helper()
	if _, err := r.raft.Apply(r.t.Context(), &cluster.RequestCancel{Job: id, Reason: "cancelling"}); err != nil {
		r.t.Fatal(err)
	}
	r.until(id, "ends", ended)
}

// chosen waits until a generation of a job runs, and ends the first one of a job that is not looked at again. It returns what status says of late layers, with which the spec of the workers agrees.
func (r *rig) chosen(id string, generation uint64) *api.StaleLayers {
	r.t.Helper()
	j := r.until(id, "commits", func(j *cluster.Job) bool {
		return committed(j) && j.Generation == generation && j.State == cluster.Running
	})
	s, err := r.Spec(j)
	if err != nil {
		r.t.Fatal(err)
	}
	late := coordinator.Status(j, s, r.Published().Jobs[id]).StaleLayers
	if late == nil || int(s.Job.Averaging.StaleLayers) != late.Layers || s.Laid() || !slices.Contains(s.Why, "averaging."+late.Why) {
		r.t.Fatalf("late layers %+v, in the spec %d: %q", late, s.Job.Averaging.StaleLayers, s.Why)
	}
	return late
}
