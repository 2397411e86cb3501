package node

import (
	"context"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/drift"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// describe is the status of a job for users. For an ended job whose worker this daemon has not seen, it looks for the worker's last
// words on the disk.
func (n *node) describe(ctx context.Context, j *cluster.Job) api.JobStatus {
	v := n.coordinator.Published().Jobs[j.ID]
	if v.Status == nil && j.State.Ended() {
		v.Status = n.lastStatus(ctx, j)
	}
	s, err := n.coordinator.Spec(j)
	if err != nil {
		s = nil // the reason says so
	}
	out := statusOf(j, s, v)
	if s != nil {
		out.Export = n.exports.describe(j, s)
	}
	return out
}

// statusOf joins what is known of a job: what its worker reports, or failing that its last committed round; what was admitted, nil where
// that cannot be read; and what the cluster has agreed on, which wins. It is a pure function.
func statusOf(j *cluster.Job, s *spec.Spec, v coordinator.View) api.JobStatus {
	var out api.JobStatus
	if v.Status != nil {
		out = v.Status.Job
	} else if m := j.LastCommitted(); m != nil {
		out = ofRound(m)
	}
	if s != nil {
		out.Budget = s.Job.Train.Budget()
		if s.Budget != nil {
			out.Steps, out.BudgetSamples = s.Budget.Steps, s.Budget.Samples
		} else if s.Job.Open() {
			out.BudgetSamples = s.Job.Wanted(0)
		}
		out.Stages, out.Pipelines, out.MicroBatches = int(s.Job.Stages), int(s.Job.Pipelines), int(s.Job.MicroBatches)
		out.Schedule, out.Averaging = s.Job.Schedule, s.Averaging()
		out.Parameters, out.Warnings, out.OutputDir = s.Parameters, s.Warnings, s.Job.Output.Dir
		out.Family, out.Task, out.Precision, out.Recompute = s.Job.Model.Family, s.Task, s.Job.Precision, s.Job.Recompute
	}
	out.ID, out.Name, out.State, out.Generation, out.Submitted = j.ID, j.Name, api.State(j.State), j.Generation, j.Submitted
	out.Reason, out.Ended = reasonOf(j, v), j.Ended
	out.Owner, out.OwnerUID = server.UserName(int(j.Owner)), j.Owner
	if v.Waits && !j.State.Ended() || held(v) != "" && v.Finished {
		out.State = api.Waiting
	}
	if m := j.LastCommitted(); m != nil {
		out.CommittedRound = m.Round
		// What the worker said may be older than the commit, and a worker that has only just been started says less.
		durable := ofRound(m)
		out.Step, out.Round = max(out.Step, durable.Step), max(out.Round, durable.Round)
		out.SamplesSeen = max(out.SamplesSeen, durable.SamplesSeen)
	}
	if out.State != api.Running {
		out.ETAS, out.BatchS = nil, nil
	} else {
		out.Drift = v.Drift
	}
	if s != nil && s.Report != nil {
		seconds := drift.Expectation(&s.Report.Chosen).BatchSeconds
		out.PredictedBatchS = &seconds
	}
	if out.State == api.Tuning {
		out.Tuning = v.Tuning
	}
	if out.Warnings == nil {
		out.Warnings = []string{} // JSON: [], not null
	}
	if out.Recompute == nil {
		out.Recompute = []string{}
	}
	if out.StageStatus == nil {
		out.StageStatus = []api.StageStatus{}
	}
	if out.LinkStatus == nil {
		out.LinkStatus = []api.LinkStatus{}
	}
	return out
}

// reasonOf says why a job is in its state: what the cluster has agreed on, and while that is not the whole story, what the
// coordinator is at.
func reasonOf(j *cluster.Job, v coordinator.View) string {
	switch {
	case j.State.Ended() || v.Note == "" || v.Note == j.Reason:
		return j.Reason
	case v.Waits:
		return v.Note
	case v.Trains && held(v) != "" && !j.Cancelling:
		return j.Reason + "; now: " + held(v)
	case j.Cancelling:
		return j.Reason + ": " + v.Note
	case j.State == cluster.Running && v.Trains && !v.Failing:
		return j.Reason
	case j.State == cluster.Running || j.State == cluster.Starting:
		return j.Reason + "; now: " + v.Note
	}
	return v.Note
}

// held says why the worker cannot write a commit yet; "" when it can.
func held(v coordinator.View) string {
	if v.Status == nil {
		return ""
	}
	return v.Status.Held
}

// ofRound is what a committed round says of its job.
func ofRound(m *cluster.Manifest) api.JobStatus {
	meta := coordinator.RoundMeta(m)
	out := api.JobStatus{
		Round: m.Round, SamplesSeen: m.SamplesSeen, Loss: meta.Loss, EvalLoss: meta.EvalLoss, EvalRound: meta.EvalRound,
		Metrics: meta.Metrics, InitialLoss: meta.InitialLoss, ElapsedS: meta.ElapsedS,
	}
	if b := meta.Budget; b != nil {
		out.Steps, out.BudgetSamples = b.Steps, b.Samples
	}
	for i, c := range m.Cursors {
		if i == 0 || c.Step < out.Step {
			out.Step = c.Step
		}
	}
	return out
}

// keptStatus names the last status of a job.
type keptStatus struct {
	job        string
	generation uint64
}

// lastStatus returns the last status of an ended job; nil where there is none.
func (n *node) lastStatus(ctx context.Context, j *cluster.Job) *control.Status {
	key := keptStatus{j.ID, j.Generation}
	value, _ := n.kept.Load(key)
	s, found := value.(*control.Status)
	if !found {
		s = n.agent.KeptStatus(ctx, j.ID)
		n.kept.Store(key, s)
	}
	return s
}
