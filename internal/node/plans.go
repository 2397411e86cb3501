package node

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/agent/remote"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/drift"
	"github.com/avgpipe/avgpipe/internal/membership"
	"github.com/avgpipe/avgpipe/internal/server"
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
	s, err := n.coordinator().Spec(j)
	if err != nil {
		return api.Explanation{}, err
	}
	out := api.Explanation{
		ID: status.ID, Name: status.Name, State: status.State, Reason: status.Reason, Stages: status.Stages, Pipelines: status.Pipelines,
		MicroBatches: status.MicroBatches, Schedule: status.Schedule, Recompute: status.Recompute, Why: append([]string{}, s.Why...),
		Warnings: status.Warnings, Plan: []string{}, Tuning: status.Tuning, Report: s.Report, Drift: status.Drift, CriticalBatch: status.CriticalBatch,
		Memory: s.Memory(), HostBytes: status.HostBytes, PredictedHostBytes: status.PredictedHostBytes,
	}
	if j.ReportDigest != "" {
		if out.Report, err = n.wholeReport(ctx, j); err != nil {
			out.Report, out.Warnings = s.Report, append(out.Warnings, "the whole report of the tuning is lost: "+err.Error())
		} else if s.Laid() {
			out.Report.Chosen = s.Report.Chosen
		}
	}
	if !j.State.Ended() {
		out.Timeouts = append(n.coordinator().Timeouts(j.ID), n.timeouts()...)
		api.SortTimeouts(out.Timeouts)
	}
	out.Why = append(out.Why, "averaging: "+s.Averaging())
	if s.Job.Open() {
		return out, nil
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

// timeouts are the bounds of what nodes wait for of each other, whatever job they work on, and of requests.
func (n *node) timeouts() []api.Timeout {
	all := []api.Timeout{{
		Name: "directory", ValueS: diskPatience.Seconds(), From: "fixed", Then: "a request that reads a job's files says that their file system hangs",
	}}
	if n.member == nil {
		return all
	}
	return append(all,
		api.Timeout{Name: "leader", ValueS: raftlog.Heartbeat.Seconds(), From: "fixed", Then: "a voter that hears nothing of the leader stands for election, within as long again"},
		api.Timeout{
			Name: "member", ValueS: membership.DeadAfter.Seconds(), From: fmt.Sprintf("fixed: probes that are not answered; more in large clusters, up to %v", 2*membership.DeadAfter),
			Then: "the members take the node for gone",
		},
		api.Timeout{Name: "agent", ValueS: remote.Silence.Seconds(), From: "fixed: a node that works on an answer says so every second", Then: "the question is given up, and the node cannot be reached"},
	)
}

// wholeReport reads the report of a job's tuning.
func (n *node) wholeReport(ctx context.Context, j *cluster.Job) (*tuner.Report, error) {
	text, err := n.coordinator().Object(ctx, j.ID, j.ReportDigest)
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
	if err := n.archives.check(s); err != nil {
		return none, err
	}
	out := api.DryRun{Tuning: "nothing is measured: the file, or a rule, gives every count"}
	if s, err = n.predict(ctx, s, &out); err != nil {
		return none, fmt.Errorf("submit %s --dry-run: %w", r.File, err)
	}
	j := &s.Job
	out.Name, out.Stages, out.Pipelines, out.MicroBatches = j.Name, int(j.Stages), int(j.Pipelines), int(j.MicroBatches)
	out.Schedule, out.Recompute, out.Averaging = j.Schedule, j.Recompute, s.Averaging()
	out.Why, out.Warnings, out.Budget = append([]string{}, s.Why...), append([]string{}, s.Warnings...), j.Train.Budget()
	chosen, err := n.coordinator().PreviewChoices(ctx, s)
	if err != nil {
		return none, fmt.Errorf("submit %s --dry-run: %w", r.File, err)
	}
	out.Why = append(out.Why, chosen...)
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
		out.Tuning = fmt.Sprintf("what is open is measured first, for about %s; what is shown here is before tuning, which may change %s, the order of work and the "+
			"layers of each stage", words.Seconds(e.TuningSeconds), strings.Join(s.Job.OpenKeys(), ", "))
	}
	return s.Tuned(report, len(n.config.Cores))
}

// price has a process of its own say what a spec would take.
func (n *node) price(ctx context.Context, s *spec.Spec) (*tuner.Report, error) {
	last, err := n.coordinator().Price(ctx, s)
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
	last, err := n.coordinator().Tune(ctx, s, each)
	switch {
	case err != nil && n.stopping(): // requests end as well, and with them ctx
		last = api.TuneUpdate{Error: fmt.Sprintf("tune %s: the daemon is stopping", r.File)}
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx) // whoever asked has gone
	case err != nil:
		last = api.TuneUpdate{Error: fmt.Sprintf("tune %s: %v", r.File, err)}
	}
	return each(last)
}
