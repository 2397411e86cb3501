package node

import (
	"context"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/drift"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/tuner"
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

// keepObject keeps what is too large for Raft in the job's directory: the text of its file, the report of its tuning.
func (n *node) keepObject(id string, whole []byte) (shard.Digest, error) {
	digest, err := checkpoint.WriteObject(checkpoint.OS, jobDir(n.config.StateDir, id), whole, 0o640)
	return shard.Digest(digest), err
}

// wholeReport reads it again.
func (n *node) wholeReport(j *cluster.Job) (*tuner.Report, error) {
	text, err := checkpoint.ReadObject(checkpoint.OS, jobDir(n.config.StateDir, j.ID), string(j.ReportDigest))
	if err != nil {
		return nil, err
	}
	return spec.ReadReport(j.ID, text)
}
