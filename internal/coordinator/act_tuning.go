package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// tune starts the job's tune process.
func (a *act) tune(ctx context.Context) (func(*observed), error) {
	err := a.Record(ctx, a.ID)
	if err == nil && len(a.taking) == 0 && a.gpus > 0 {
		err = errNoRoom
	}
	if err != nil {
		return nil, fmt.Errorf("tune job %s: %w", a.ID, err)
	}
	cores := a.taking.cores(a.here.Name)
	err = a.propose(ctx, &cluster.BeginTuning{Job: a.ID, Generation: a.Generation, Reason: a.decision.reason})
	if err != nil {
		return nil, fmt.Errorf("tune job %s: %w", a.ID, err)
	}
	a.Say(a.ID, "starting a tuning", zap.String("reason", a.decision.reason), zap.Ints("cores", cores))
	request := a.tuneRequest(a.spec, a.taking)
	request.JobID = a.ID
	request.Bounded = a.spec.Bounded()
	run, err := a.here.Agent.Tune(ctx, request)
	if err != nil {
		return func(o *observed) {
			o.tuning = &tuning{cause: err.Error()}
			if obstacle.Of(err) == nil {
				o.die(a.now())
			}
		}, err
	}
	return func(o *observed) {
		o.tuning = newTuning(run, a.taking, a.now())
		a.followTuning(run)
	}, nil
}

// tuneRequest asks for what a spec leaves open, to be measured at a place. Without one, it names the GPUs that the job would be given.
func (c *Coordinator) tuneRequest(s *spec.Spec, at placement) control.TuneRequest {
	gpus, own := c.here.usable(), at.gpus(c.here.Name)
	if at != nil {
		gpus = slices.DeleteFunc(gpus, func(g gpu.GPU) bool { return !slices.Contains(own, g.UUID) })
	}
	return control.TuneRequest{
		Critical: c.measuredBatch(s),
		Spec:     *s, Cores: at.cores(c.here.Name), NodeCores: len(c.here.Cores), GPUs: gpus[:min(s.GPUs(), len(gpus))],
	}
}

// resolve makes what was chosen the job's. A choice that cannot be made one ends the job.
func (a *act) resolve(ctx context.Context) (func(*observed), error) {
	resolved, err := a.spec.Tuned(a.tuning.report, len(a.here.Cores))
	if err != nil {
		failed := &cluster.EndJob{Job: a.ID, Generation: a.Generation, State: cluster.Failed, Reason: err.Error(), At: a.now()}
		return nil, errors.Join(err, a.propose(ctx, failed))
	}
	text, err := spec.Encode(resolved)
	if err != nil {
		return nil, err
	}
	done := &cluster.ResolveJob{Job: a.ID, Generation: a.Generation, Spec: text, Reason: "laid out by the rules; waits for a place"}
	if a.tuning.report.Ruled == "" {
		done.Reason = "tuned; waits for a place"
		var whole []byte
		if whole, done.Report, err = spec.EncodeReport(a.tuning.report); err != nil {
			return nil, err
		}
		if done.ReportDigest, err = a.Keep(ctx, a.ID, whole); err != nil {
			return nil, fmt.Errorf("resolve job %s: keep the report of its tuning: %w", a.ID, err)
		}
	}
	err = a.propose(ctx, done)
	if err != nil {
		return nil, fmt.Errorf("resolve job %s: %w", a.ID, err)
	}
	a.Say(a.ID, "tuned", zap.Strings("choices", resolved.Why), zap.Strings("warnings", resolved.Warnings),
		zap.Bool("cached", a.tuning.report.Cached), zap.Float64("seconds", a.tuning.report.Took))
	return func(o *observed) {
		o.deaths, o.hold = 0, nil
	}, nil
}
