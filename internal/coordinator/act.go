package coordinator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/tuner"
)

// act is one choice being carried out. It may block; it touches nothing of the coordinator's goroutine but through the change that it
// returns.
type act struct {
	*Coordinator
	job      *cluster.Job
	spec     *spec.Spec
	decision decision
	worker   agent.Process             // the job's, and of killTune the tuning; zero: none
	last     *control.Status           // of the worker, or of the last one; nil: none was heard
	cores    []int                     // of place and tune
	report   *tuner.Report             // of resolve
	shards   map[int]control.ShardInfo // of commitRound, by stage
	reached  time.Time                 // of commitRound: when its round was seen to be reached; zero: it was faster than that
	hold     *hold                     // of probe
}

// run carries the choice out. The change is applied whether or not there is an error.
func (a *act) run(ctx context.Context) (func(*observed), error) {
	switch a.decision.choice {
	case tune:
		return a.tune(ctx)
	case resolve:
		return a.resolve(ctx)
	case killTune:
		return a.kill(ctx)
	case place:
		return a.place(ctx)
	case beginCommit:
		return nil, a.propose(ctx, &cluster.BeginCommit{Job: a.job.ID, Generation: a.job.Generation, Round: a.decision.round})
	case postCommit:
		return a.postCommit(ctx)
	case dropCommit:
		return nil, a.dropCommit(ctx)
	case commitRound:
		return a.commitRound(ctx)
	case setRunning:
		return nil, a.propose(ctx, &cluster.SetState{
			Job: a.job.ID, Generation: a.job.Generation, State: cluster.Running, Reason: a.runningReason(),
		})
	case abortWorker:
		return nil, a.abort(ctx)
	case killWorker:
		return a.kill(ctx)
	case endJob:
		return a.end(ctx)
	case probe:
		return a.probe(ctx), nil
	case removeJob:
		return a.remove(ctx)
	case wait:
	}
	return nil, nil
}

func (a *act) propose(ctx context.Context, c cluster.Command) error {
	_, err := a.raft.Apply(ctx, c)
	return err
}

// runningReason says where training began.
func (a *act) runningReason() string {
	if a.job.Generation == 1 {
		return "training"
	}
	return "training; " + a.job.Reason
}

// abort tells the worker to end. One that does not listen is killed a little later.
func (a *act) abort(ctx context.Context) error {
	a.Say(a.job.ID, "ending the worker", zap.String("reason", a.decision.reason))
	if err := a.agent.Stop(ctx, a.worker); err != nil {
		return fmt.Errorf("end the worker: %w", err)
	}
	return nil
}

// kill ends a worker or a tuning at once: the one has committed what it could, the other has nothing to save.
func (a *act) kill(ctx context.Context) (func(*observed), error) {
	what := "killing the worker"
	if a.decision.choice == killTune {
		what = "ending the tuning"
	}
	a.Say(a.job.ID, what, zap.Int("process", a.worker.ID.PID), zap.String("reason", a.decision.reason))
	err := a.agent.Kill(ctx, a.worker)
	return func(o *observed) { o.notBefore = time.Now().Add(afterFail) }, err // its end is noticed before
}

// end records that the job is over, with the worker's last status beside it.
func (a *act) end(ctx context.Context) (func(*observed), error) {
	d := a.decision
	final := a.finalStatus(ctx)
	var c cluster.Command = &cluster.EndJob{
		Job: a.job.ID, Generation: a.job.Generation, State: cluster.JobState(d.state), Reason: d.reason, At: time.Now(),
	}
	if d.state == api.Cancelled {
		if by := a.job.CancelledBy; by != "" {
			d.reason = "cancelled by " + by + strings.TrimPrefix(d.reason, "cancelled")
		}
		c = &cluster.CancelJob{Job: a.job.ID, Reason: d.reason, At: time.Now()}
	}
	if err := a.propose(ctx, c); err != nil {
		return nil, err
	}
	switch d.state {
	case api.Done:
		a.Counts.Done.Add(1)
	case api.Failed:
		a.Counts.Failed.Add(1)
	default:
		a.Counts.Cancelled.Add(1)
	}
	if err := a.Record(ctx, a.job.ID); err != nil {
		a.log.Warn("keep a copy of the job's record", zap.String("job", a.job.ID), zap.Error(err)) // the next start does
	}
	level := zap.InfoLevel
	if d.state == api.Failed {
		level = zap.ErrorLevel
	}
	a.sayAt(level, a.job.ID, "job "+string(d.state), zap.String("reason", d.reason))
	return func(o *observed) {
		if final != nil {
			o.status = final
		}
	}, nil
}

// finalStatus asks a living worker once more and keeps the answer for after a restart; nil without one.
func (a *act) finalStatus(ctx context.Context) *control.Status {
	last := a.last
	if s, err := a.agent.Status(ctx, a.worker); err == nil && s.Generation == a.job.Generation {
		last = &s
	}
	if last == nil {
		return nil
	}
	if err := a.agent.KeepStatus(ctx, a.job.ID, last); err != nil { // for show only: the job is what Raft says it is
		a.log.Warn("keep the last status", zap.String("job", a.job.ID), zap.Error(err))
	}
	return last
}
