package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// lookForCores is how often a tuning of no job looks for free cores.
const lookForCores = 200 * time.Millisecond

// What ends a tuning of no job.
var (
	errSilent   = errors.New("the tuning has said nothing for longer than it may")
	errStopping = errors.New("the daemon is stopping")
)

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
	last, err := n.preview(ctx, s, each)
	if err != nil {
		switch {
		case n.ending.Err() != nil: // requests end as well, and with them ctx
			err = errStopping
		case ctx.Err() != nil:
			return context.Cause(ctx) // whoever asked has gone
		}
		last = api.TuneUpdate{Error: fmt.Sprintf("tune %s: %v", r.File, err)}
	}
	return each(last)
}

// preview tunes what a spec leaves open, and leaves nothing behind. It returns the last words of the tuning.
func (n *node) preview(ctx context.Context, s *spec.Spec, each func(api.TuneUpdate) error) (last api.TuneUpdate, err error) {
	ctx, cancel := n.untilStop(ctx)
	defer cancel(nil)
	began := time.Now()
	cores, err := n.borrow(ctx, s.Cores(len(n.config.Cores)), func(text string) error {
		return each(api.TuneUpdate{Progress: &api.TuneProgress{Text: text, ElapsedS: time.Since(began).Seconds()}})
	})
	if err != nil {
		return last, err
	}
	defer n.giveBack(cores)
	last, err = n.runTuning(ctx, cancel, n.tuneRequest(s, cores), each)
	if err == nil && last.Report != nil && !s.Job.Open() {
		if err := n.keepGiven(s, last.Report); err != nil { // it is shown now, and not by explain
			n.log.Warn("keep the report of a tuning", zap.Error(err))
		}
	}
	return last, err
}

// untilStop is ctx, ended when the daemon begins to stop.
func (n *node) untilStop(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(n.ending, func() {
		cancel(errStopping)
	})
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// borrow waits for so many cores, and says what it waits for. Jobs that are queued do not wait for it, nor it for them.
func (n *node) borrow(ctx context.Context, need int, say func(string) error) ([]int, error) {
	said := ""
	for {
		cores, why := n.tryBorrow(need)
		if why == "" {
			return cores, nil
		}
		if why != said {
			said = why
			if err := say(why); err != nil {
				return nil, err
			}
		}
		if !sleep(ctx, lookForCores) {
			return nil, context.Cause(ctx)
		}
	}
}

// tryBorrow takes cores that are free, or says why it cannot.
func (n *node) tryBorrow(need int) (cores []int, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w, jobs := n.world(n.raft.State(), false)
	free := n.freeCores(jobs)
	if least := min(w.free(), len(free)); need > least {
		return nil, "waiting for cores: " + coreNeed(need, least, w.cores)
	}
	n.lent = append(n.lent, free[:need]...)
	return free[:need:need], ""
}

// giveBack makes borrowed cores free.
func (n *node) giveBack(cores []int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lent = slices.DeleteFunc(n.lent, func(c int) bool { return slices.Contains(cores, c) })
}

// runTuning starts a tune process, passes on how far it is and returns its last words. One that hangs is ended.
func (n *node) runTuning(
	ctx context.Context, cancel context.CancelCauseFunc, request control.TuneRequest, each func(api.TuneUpdate) error,
) (api.TuneUpdate, error) {
	var none api.TuneUpdate
	p, err := n.agent.Tune(ctx, request)
	if err != nil {
		return none, err
	}
	stop := context.AfterFunc(ctx, func() { _ = n.agent.Kill(context.WithoutCancel(ctx), p) }) // its end is waited for
	defer stop()
	t := newTuning(p, request.Cores, time.Now())
	silence := time.AfterFunc(t.silence(), func() { cancel(errSilent) })
	defer silence.Stop()
	err = n.agent.Events(context.WithoutCancel(ctx), p, func(e agent.Event) {
		switch {
		case e.Tuning != nil:
			t.take(e.Tuning, time.Now())
			silence.Reset(t.silence())
			if e.Tuning.Progress == nil {
				break
			}
			if err := each(api.TuneUpdate{Progress: t.show()}); err != nil {
				cancel(err)
			}
		case e.Exit != nil:
			t.end(e.Exit)
		}
	})
	if err != nil { // of what it left behind: the next start tries again
		n.log.Warn("watch a tuning", zap.Error(err))
	}
	switch {
	case t.report != nil:
		return api.TuneUpdate{Report: t.report}, nil
	case t.failure+t.trouble != "":
		return api.TuneUpdate{Error: t.failure + t.trouble}, nil
	case context.Cause(ctx) != nil:
		return none, context.Cause(ctx)
	}
	return none, errors.New(t.cause)
}
