package node

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/drift"
)

// maxShownOps bounds a plan that people are shown.
const maxShownOps = 1000

// Explain implements server.Backend.
func (n *node) Explain(_ context.Context, ref string) (api.Explanation, error) {
	j, err := n.find(ref)
	if err != nil {
		return api.Explanation{}, err
	}
	status := n.describe(j)
	n.mu.Lock()
	s, err := n.Spec(j)
	n.mu.Unlock()
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

// watchDrift holds what a tuned job's worker has just said against what its tuning found. The caller holds the lock.
func (n *node) watchDrift(j *cluster.Job, o *observed, now time.Time) {
	s, err := n.Spec(j)
	if err != nil || s.Report == nil || o.phase != training || j.State != cluster.Running {
		return
	}
	status := o.status.Job
	status.Pipelines, status.MicroBatches = int(s.Job.Pipelines), int(s.Job.MicroBatches)
	m := drift.Measured(&status, s.Placement(), s.Job.Train.Batch)
	if m == nil {
		return
	}
	o.drift.Hold = n.config.DriftHold
	if !o.drift.See(now, drift.Chosen{Candidate: &s.Report.Chosen, ExchangeNorm: s.Job.Optimizer.ClipNorm > 0}, m, s.Report.Bound) {
		return
	}
	if d := o.drift.Now; d != nil {
		n.say(j.ID, "the batch time has left its prediction", zap.String("what", d.Text), zap.Float64("bound", s.Report.Bound))
	} else {
		n.say(j.ID, "the batch time is back at its prediction", zap.Float64("seconds", m.BatchSeconds))
	}
}
