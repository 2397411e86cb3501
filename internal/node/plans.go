package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/drift"
	"github.com/avgpipe/avgpipe/internal/plancache"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// maxShownOps bounds a plan that people are shown.
const maxShownOps = 1000

func (n *node) Explain(ctx context.Context, ref string) (api.Explanation, error) {
	j, err := n.find(ref)
	if err != nil {
		return api.Explanation{}, err
	}
	status := n.describe(ctx, j)
	s, err := n.coordinator.Spec(j)
	if err != nil {
		return api.Explanation{}, err
	}
	out := api.Explanation{
		ID: status.ID, Name: status.Name, State: status.State, Reason: status.Reason, Stages: status.Stages, Pipelines: status.Pipelines,
		MicroBatches: status.MicroBatches, Schedule: status.Schedule, Recompute: status.Recompute, Why: append([]string{}, s.Why...),
		Warnings: status.Warnings, Plan: []string{}, Tuning: status.Tuning, Report: s.Report, Drift: status.Drift,
	}
	if j.ReportDigest != "" {
		if out.Report, err = n.wholeReport(j); err != nil {
			out.Report, out.Warnings = s.Report, append(out.Warnings, "the whole report of the tuning is lost: "+err.Error())
		}
	}
	out.Why = append(out.Why, "averaging: "+s.Averaging())
	if s.Job.Open() {
		return out, nil
	}
	if out.Report == nil {
		if out.Report, err = n.findFixed(s); err != nil { // it may be made anew
			n.log.Warn("no prediction for a job", zap.String("job", j.ID), zap.Error(err))
		}
	}
	plan, _, err := s.Plan()
	if err != nil {
		return out, err
	}
	if plan.Ops() <= maxShownOps {
		out.Plan = plan.Lines()
	}
	out.Observed = drift.Measured(&status, plan.Placement(), s.Job.Train.Batch)
	return out, nil
}

// keepObject keeps what is too large for Raft in the job's directory: the text of its file, the report of its tuning.
func (n *node) keepObject(id string, whole []byte) (shard.Digest, error) {
	digest, err := checkpoint.WriteObject(agent.JobDir(n.config.StateDir, id), whole, 0o640)
	return shard.Digest(digest), err
}

// wholeReport reads it again.
func (n *node) wholeReport(j *cluster.Job) (*tuner.Report, error) {
	text, err := checkpoint.ReadObject(agent.JobDir(n.config.StateDir, j.ID), string(j.ReportDigest))
	if err != nil {
		return nil, err
	}
	return spec.ReadReport(j.ID, text)
}

// DryRun implements server.Backend. It admits a job and prices it in a process of its own, and keeps nothing.
func (n *node) DryRun(ctx context.Context, r api.SubmitRequest, peer server.Peer) (api.DryRun, error) {
	var none api.DryRun
	s, err := n.admitJob(ctx, "submit", r, peer)
	if err != nil {
		return none, err
	}
	out := api.DryRun{Tuning: "nothing is measured: the file, or a rule, gives every count"}
	if s.UserPlan == nil { // else it is simulated by avgpipectl plan compare
		if s, err = n.predict(ctx, s, &out); err != nil {
			return none, fmt.Errorf("submit %s --dry-run: %w", r.File, err)
		}
	}
	j := &s.Job
	out.Name, out.Stages, out.Pipelines, out.MicroBatches = j.Name, int(j.Stages), int(j.Pipelines), int(j.MicroBatches)
	out.Schedule, out.Recompute, out.Averaging = j.Schedule, j.Recompute, s.Averaging()
	out.Why, out.Warnings, out.Budget = append([]string{}, s.Why...), append([]string{}, s.Warnings...), j.Train.Budget()
	if s.Budget != nil {
		out.BudgetSamples, out.Steps = s.Budget.Samples, s.Budget.Steps
	}
	plan, _, err := s.Plan()
	if err != nil {
		return none, fmt.Errorf("submit %s --dry-run: %w", r.File, err)
	}
	out.Plan = []string{}
	if plan.Ops() <= maxShownOps {
		out.Plan = plan.Lines()
	}
	return out, nil
}

// predict returns the spec as it is expected to be once it is resolved, and fills in what it and its tuning would take. What is only
// predicted is said to be.
func (n *node) predict(ctx context.Context, s *spec.Spec, out *api.DryRun) (*spec.Spec, error) {
	report, err := n.price(ctx, s)
	if err != nil {
		return nil, err
	}
	out.Report = report
	if !s.Job.Open() || report.Estimate == nil {
		return s, nil
	}
	e := report.Estimate
	share := s.Job.TuningShare
	if s.Retune {
		share = 0
	}
	switch dear := e.TooDear(share); {
	case report.Cached:
		out.Tuning = "nothing is measured: the choice of an earlier tuning of such a job is taken"
	case dear != "":
		if s, err = s.Tuned(&tuner.Report{Ruled: dear}, len(n.config.Cores)); err != nil {
			return nil, err
		}
		out.Tuning = dear
		if out.Report, err = n.price(ctx, s); err == nil && out.Report.Estimate != nil {
			out.Report.Estimate.TuningSeconds = e.TuningSeconds
		}
		return s, err
	default:
		out.Tuning = fmt.Sprintf("what is open is measured first, for about %s; what is shown here is predicted", words.Seconds(e.TuningSeconds))
	}
	return s.Tuned(report, len(n.config.Cores))
}

// price has a process of its own say what a spec would take.
func (n *node) price(ctx context.Context, s *spec.Spec) (*tuner.Report, error) {
	last, err := n.coordinator.Price(ctx, s)
	switch {
	case err != nil:
		return nil, err
	case last.Report == nil:
		return nil, api.Errorf(http.StatusUnprocessableEntity, "%s", last.Error)
	}
	return last.Report, nil
}

// Tune implements server.Backend. What it finds is kept in the cache of plans and nowhere else.
func (n *node) Tune(ctx context.Context, r api.SubmitRequest, peer server.Peer, each func(api.TuneUpdate) error) error {
	r.Set = append(slices.Clone(r.Set), "tuning="+job.TuneByProfile) // whatever the file says: that is what is asked for
	s, err := n.admitJob(ctx, "tune", r, peer)
	if err != nil {
		return err
	}
	if s.Job.PlanFile() != "" {
		return api.Errorf(http.StatusUnprocessableEntity, "tune %s: its plan is a file's, %s, so there is nothing to choose but pipelines, which a rule does; "+
			"name a schedule to measure, such as --set schedule=auto; avgpipectl plan compare simulates", r.File, s.Job.Schedule)
	}
	if len(s.Warnings) > 0 {
		if err := each(api.TuneUpdate{Warnings: s.Warnings}); err != nil {
			return err
		}
	}
	last, err := n.coordinator.Tune(ctx, s, each)
	switch {
	case err != nil && n.stopping(): // requests end as well, and with them ctx
		last = api.TuneUpdate{Error: fmt.Sprintf("tune %s: the daemon is stopping", r.File)}
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx) // whoever asked has gone
	case err != nil:
		last = api.TuneUpdate{Error: fmt.Sprintf("tune %s: %v", r.File, err)}
	case last.Report != nil && !s.Job.Open():
		if err := n.keepFixed(s, last.Report); err != nil { // it is shown now, and not by explain
			n.log.Warn("keep the report of a tuning", zap.Error(err))
		}
	}
	return each(last)
}

// Reports of jobs whose counts are all fixed lie in the cache of plans by what their files say, so that explain finds them
// without opening model and data: STATE/plans/DIGEST.given, a file like those of plans that were chosen (docs/formats.md).

// fixedPath is where the report of a job with fixed counts is kept. Two jobs that differ only in what no batch time depends on
// share one.
func fixedPath(state string, s *spec.Spec, cores int) (string, error) {
	j := s.Job
	j.Name, j.Seed, j.Tuning, j.TuningShare, j.Output, j.Center = "", 0, "", 0, job.Output{}, job.Center{}
	j.Train = job.Train{Batch: j.Train.Batch}
	o, a := j.Optimizer, j.Averaging
	j.Optimizer = job.Optimizer{Name: o.Name, Momentum: one(o.Momentum), ClipNorm: one(o.ClipNorm)}
	j.Averaging = job.Averaging{Method: a.Method, Pull: a.Pull, Tau: a.Tau}
	j.Data.Files, j.Data.Validation, j.Data.Holdout = nil, nil, 0
	text, err := json.Marshal(map[string]any{"report": tuner.ReportVersion, "job": j, "model": s.Model, "plan": s.UserPlan, "cores": cores})
	if err != nil {
		return "", fmt.Errorf("digest of the job: %w", err)
	}
	sum := sha256.Sum256(text)
	return plancache.Fixed(agent.PlansDir(state), hex.EncodeToString(sum[:])), nil
}

// one is 1 for what is used, however much of it.
func one(amount float64) float64 {
	if amount > 0 {
		return 1
	}
	return 0
}

// keepFixed keeps the report of a tuning that had nothing to choose.
func (n *node) keepFixed(s *spec.Spec, r *tuner.Report) error {
	path, err := fixedPath(n.config.StateDir, s, len(n.config.Cores))
	if err != nil {
		return err
	}
	return plancache.Write(path, r)
}

// findFixed finds it; nil when there is none for such a job.
func (n *node) findFixed(s *spec.Spec) (*tuner.Report, error) {
	path, err := fixedPath(n.config.StateDir, s, len(n.config.Cores))
	if err != nil {
		return nil, err
	}
	r, err := plancache.Read(path)
	if r == nil || err != nil {
		return nil, err
	}
	if err := spec.Agrees(&s.Job, &r.Chosen); err != nil {
		return nil, fmt.Errorf("plan cache: %s: %w", path, err)
	}
	r.Cached = true
	return r, nil
}
