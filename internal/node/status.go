package node

import (
	"encoding/json"
	"os"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/drift"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// describe joins what is known of a job: what its worker says, or failing that its last committed round; what was
// admitted; and what the cluster has agreed on, which wins.
func (n *node) describe(j *cluster.Job) api.JobStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := n.job(j.ID)
	if o.status == nil && j.State.Ended() && !o.searched {
		o.searched = true
		o.status = readStatus(jobDir(n.config.StateDir, j.ID))
	}
	var out api.JobStatus
	if o.status != nil {
		out = o.status.Job
	} else if m := j.LastCommitted(); m != nil {
		out = ofRound(m)
	}
	s, err := n.Spec(j)
	if err == nil {
		out.Budget = s.Job.Train.Budget()
		if s.Budget != nil {
			out.Steps, out.BudgetSamples = s.Budget.Steps, s.Budget.Samples
		} else if s.Job.Open() {
			out.BudgetSamples = s.Job.Wanted(0)
		}
		out.Stages, out.Pipelines, out.MicroBatches = int(s.Job.Stages), int(s.Job.Pipelines), int(s.Job.MicroBatches)
		out.Schedule, out.Averaging = s.Job.Schedule, s.Averaging()
		out.Parameters, out.Warnings, out.OutputDir = s.Parameters, s.Warnings, s.Job.Output.Dir
		out.Family, out.Task, out.Precision, out.Recompute = s.Job.Model.Family, s.TaskName(), s.Job.Precision, s.Job.Recompute
	}
	out.ID, out.Name, out.State, out.Generation, out.Submitted = j.ID, j.Name, api.State(j.State), j.Generation, j.Submitted
	out.Reason, out.Ended = reasonOf(j, o), j.Ended
	out.Owner, out.OwnerUID = server.UserName(int(j.Owner)), j.Owner
	if o.waits() && !j.State.Ended() || held(o) != "" && o.phase == finished {
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
		out.Drift = o.drift.Now
	}
	if err == nil && s.Report != nil {
		seconds := drift.Expectation(&s.Report.Chosen).BatchSeconds
		out.PredictedBatchS = &seconds
	}
	if t := o.tuning; out.State == api.Tuning && t != nil {
		out.Tuning = t.show()
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
func reasonOf(j *cluster.Job, o *observed) string {
	trains := o.phase == training || o.phase == finished
	switch {
	case j.State.Ended() || o.note == "" || o.note == j.Reason:
		return j.Reason
	case o.waits():
		return o.note
	case trains && held(o) != "" && !j.Cancelling:
		return j.Reason + "; now: " + held(o)
	case j.Cancelling:
		return j.Reason + ": " + o.note
	case j.State == cluster.Running && trains && o.quiet.IsZero():
		return j.Reason
	case j.State == cluster.Running || j.State == cluster.Starting:
		return j.Reason + "; now: " + o.note
	}
	return o.note
}

// held says why the worker cannot write a commit yet; "" when it can.
func held(o *observed) string {
	if o.status == nil {
		return ""
	}
	return o.status.Held
}

// ofRound is what a committed round says of its job.
func ofRound(m *cluster.Manifest) api.JobStatus {
	meta := roundMeta(m)
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

// roundMeta decodes what the worker said of a round; what it cannot decode is left out, since it is for show only.
func roundMeta(m *cluster.Manifest) control.RoundMeta {
	var meta control.RoundMeta
	_ = json.Unmarshal(m.Meta, &meta) // as documented
	return meta
}

// readStatus reads the last status of an ended job; nil when there is none, or none that can be read.
func readStatus(dir string) *control.Status {
	text, err := os.ReadFile(statusPath(dir))
	if err != nil {
		return nil
	}
	var s control.Status
	if json.Unmarshal(text, &s) != nil {
		return nil
	}
	return &s
}

// lastStatus returns a copy of the last status that a job's worker gave; nil without one.
func (n *node) lastStatus(id string) *control.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := n.job(id)
	if o.status == nil {
		return nil
	}
	s := *o.status
	return &s
}
