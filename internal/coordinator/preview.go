package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// lookForCores is how often a tuning of no job looks for free cores.
const lookForCores = 200 * time.Millisecond

// errSilent ends a tuning of no job that hangs.
var errSilent = errors.New("the tuning has said nothing for longer than it may")

// Tune tunes what a spec leaves open, for no job, and leaves nothing behind. It calls each with how far it is, and returns the last
// message of the tuning. It ends when the coordinator begins to stop.
func (c *Coordinator) Tune(ctx context.Context, s *spec.Spec, each func(api.TuneUpdate) error) (last api.TuneUpdate, err error) {
	ctx, cancel := c.untilStop(ctx)
	defer cancel(nil)
	began := c.now()
	at, err := c.waitForRoom(ctx, s, func(text string) error {
		return each(api.TuneUpdate{Progress: &api.TuneProgress{Text: text, ElapsedS: time.Since(began).Seconds()}})
	})
	if err != nil {
		return last, err
	}
	defer c.release(context.WithoutCancel(ctx), at)
	c.spawn(func() { c.endWhenSick(ctx, cancel, at) })
	return c.runTuning(ctx, cancel, c.tuneRequest(s, at), each)
}

// Price has a process of its own say what a spec would take. It measures nothing.
func (c *Coordinator) Price(ctx context.Context, s *spec.Spec) (api.TuneUpdate, error) {
	ctx, cancel := c.untilStop(ctx)
	defer cancel(nil)
	request := c.tuneRequest(s, nil)
	request.Estimate, request.NodeCores = true, s.Cores(len(c.here.Cores))
	return c.runTuning(ctx, cancel, request, func(api.TuneUpdate) error { return nil })
}

// untilStop is ctx, ended when the coordinator begins to stop.
func (c *Coordinator) untilStop(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.stopping, func() { cancel(errStopping) })
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// waitForRoom waits for the cores and GPUs that a tuning needs, and says what it waits for.
func (c *Coordinator) waitForRoom(ctx context.Context, s *spec.Spec, say func(string) error) (placement, error) {
	said := ""
	for {
		at, why, err := c.reserve(ctx, s.Cores(len(c.here.Cores)), s.GPUs())
		if why == "" || err != nil {
			return at, err
		}
		if why != said {
			said = why
			if err := say(why); err != nil {
				return nil, err
			}
		}
		select {
		case <-time.After(lookForCores):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// endWhenSick ends a tuning of no job once one of its GPUs is sick.
func (c *Coordinator) endWhenSick(ctx context.Context, cancel context.CancelCauseFunc, at placement) {
	for len(at.gpus(c.here.Name)) > 0 && ctx.Err() == nil {
		if why := c.sick(at); why != "" {
			cancel(fmt.Errorf("the tuning was ended: %s", why))
		}
		select {
		case <-time.After(lookForCores):
		case <-ctx.Done():
		}
	}
}

// runTuning starts a tuning of no job, passes on how far it is and returns its last message. One that hangs is ended.
func (c *Coordinator) runTuning(
	ctx context.Context, cancel context.CancelCauseFunc, request control.TuneRequest, each func(api.TuneUpdate) error,
) (api.TuneUpdate, error) {
	var none api.TuneUpdate
	p, err := c.here.Agent.Tune(ctx, request)
	if err != nil {
		return none, err
	}
	toTheEnd := context.WithoutCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = c.here.Agent.Kill(toTheEnd, p) }) // its end is waited for
	defer stop()
	t := newTuning(p, nil, c.now())
	silence := time.AfterFunc(t.silence(), func() { cancel(errSilent) })
	defer silence.Stop()
	err = c.here.Agent.Events(toTheEnd, p, func(e agent.Event) {
		switch {
		case e.Tuning != nil:
			t.take(e.Tuning, c.now())
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
	if err != nil { // its directory could not be removed: the next start does
		c.log.Warn("watch a tuning", zap.Error(err))
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
