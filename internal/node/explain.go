package node

import (
	"context"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/drift"
)

// maxShownOps bounds a plan that people are shown.
const maxShownOps = 1000

// Explain implements server.Backend.
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
	out.Why = append(out.Why, "averaging: "+s.Averaging())
	if s.Job.Open() {
		return out, nil
	}
	if out.Report == nil {
		if out.Report, err = n.findGiven(s); err != nil { // it may be made anew
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
