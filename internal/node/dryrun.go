package node

import (
	"context"
	"fmt"
	"net/http"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/tuner"
)

// DryRun implements server.Backend. It admits a job and prices it in a process of its own, and keeps nothing.
func (n *node) DryRun(ctx context.Context, r api.SubmitRequest, peer server.Peer) (api.DryRun, error) {
	var none api.DryRun
	s, err := n.admitJob(ctx, "submit", r, peer)
	if err != nil {
		return none, err
	}
	out := api.DryRun{Tuning: "nothing is measured: the file, or a rule, gives every count"}
	if s.UserPlan == nil { // else it is simulated by avgpipectl plan compare
		if s, err = n.foretell(ctx, s, &out); err != nil {
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

// foretell returns the spec as it is expected to be once it is resolved, and fills in what it and its tuning would take. What is only
// predicted is said to be.
func (n *node) foretell(ctx context.Context, s *spec.Spec, out *api.DryRun) (*spec.Spec, error) {
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
