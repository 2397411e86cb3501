package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// act is one choice being carried out. It may block; it touches nothing of the coordinator's goroutine but through the change that it
// returns.
type act struct {
	*Coordinator
	observed // a copy of when the act began; its maps belong to the coordinator's goroutine still

	decision decision
	away     map[string]string         // the nodes that could not be reached when the act began, and why
	have     map[shard.Digest][]string // of commitRound: the nodes that have each, where that is more than the one that wrote it
	verified map[shard.Digest]string   // of place: the node where a shard of its round was read through, and is whole
	durable  map[int]stored            // of commitRound: its shards, by stage
	rooms    []placer.Node             // of resplit: what was free when the act began
	why      string                    // of place: why stages are where they are; "" where nothing was to be chosen
}

// acts carry choices out. The change that one returns is applied whether or not there is an error.
var acts = map[choice]func(*act, context.Context) (func(*observed), error){
	tune: (*act).tune, resolve: (*act).resolve, killTune: (*act).kill, place: (*act).place, beginCommit: (*act).beginCommit,
	postCommit: (*act).postCommit, dropCommit: (*act).dropCommit, commitRound: (*act).commitRound, setRunning: (*act).setRunning,
	abortWorkers: (*act).abort, killWorkers: (*act).kill, endJob: (*act).end, probe: (*act).probe, awaitGPUs: (*act).awaitGPUs, resplit: (*act).resplit, regrow: (*act).regrow, removeJob: (*act).remove,
}

func (a *act) propose(ctx context.Context, c cluster.Command) error {
	_, err := a.raft.Apply(ctx, c)
	return err
}

// setRunning records that the job trains, and where training began.
func (a *act) setRunning(ctx context.Context) (func(*observed), error) {
	reason := "training"
	if a.Generation > 1 {
		reason += "; " + a.Reason
	}
	return nil, a.propose(ctx, &cluster.SetState{Job: a.ID, Generation: a.Generation, State: cluster.Running, Reason: reason})
}

// abort tells the workers to end. Those that do not listen are killed a little later.
func (a *act) abort(ctx context.Context) (func(*observed), error) {
	a.Say(a.ID, "ending the worker", zap.String("reason", a.decision.reason))
	return nil, a.eachOf(ctx, a.answering(), func(ctx context.Context, w *worker) error {
		if err := a.at(w.process).Stop(ctx, w.process); err != nil && !errors.Is(err, agent.ErrUnreachable) {
			return fmt.Errorf("end the worker%s: %w", a.of(w), err)
		}
		return nil
	})
}

// kill ends the workers or a tuning at once: those have committed what they could, this has nothing to save.
func (a *act) kill(ctx context.Context) (func(*observed), error) {
	what, all := "killing the worker", a.answering()
	if a.choice == killTune {
		what, all = "ending the tuning", []*worker{{process: a.tuning.process}}
	}
	err := a.eachOf(ctx, all, func(ctx context.Context, w *worker) error {
		a.Say(a.ID, what, zap.Int("process", w.process.ID.PID), zap.String("on", w.process.Node), zap.String("reason", a.decision.reason))
		return a.at(w.process).Kill(ctx, w.process)
	})
	return func(o *observed) { o.notBefore = a.now().Add(afterFail) }, err // normally their end is seen before that
}

// askBound is how long a worker may take to be told something. The daemon of its node may be gone.
const askBound = 5 * time.Second

// eachOf does something with workers, all at once.
func (a *act) eachOf(ctx context.Context, workers []*worker, do func(context.Context, *worker) error) error {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	errs, all := make([]error, len(workers)), make([]func(), len(workers))
	for i, w := range workers {
		all[i] = func() { errs[i] = do(ctx, w) }
	}
	a.together(all)
	return errors.Join(errs...)
}

// end records that the job is over, with the workers' last status beside it.
func (a *act) end(ctx context.Context) (func(*observed), error) {
	d := a.decision
	final := a.finalStatus(ctx)
	var c cluster.Command = &cluster.EndJob{
		Job: a.ID, Generation: a.Generation, State: d.state, Reason: d.reason, At: a.now(),
	}
	if d.state == cluster.Cancelled {
		if by := a.CancelledBy; by != "" {
			d.reason = "cancelled by " + by + strings.TrimPrefix(d.reason, "cancelled")
		}
		c = &cluster.CancelJob{Job: a.ID, Reason: d.reason, At: a.now()}
	}
	if err := a.propose(ctx, c); err != nil {
		return nil, err
	}
	switch d.state {
	case cluster.Done:
		a.Counts.Done.Add(1)
	case cluster.Failed:
		a.Counts.Failed.Add(1)
	default:
		a.Counts.Cancelled.Add(1)
	}
	level := zap.InfoLevel
	if d.state == cluster.Failed {
		level = zap.ErrorLevel
	}
	a.sayAt(level, a.ID, "job "+string(d.state), zap.String("reason", d.reason)) // first: whoever follows the log waits for it
	if err := a.Record(ctx, a.ID); err != nil {
		a.log.Warn("keep a copy of the job's record", zap.String("job", a.ID), zap.Error(err)) // the next start does
	}
	return func(o *observed) {
		if final != nil {
			o.status = final
		}
	}, nil
}

// finalStatus asks the living workers once more and keeps what they say for after a restart, here and where the job ran, so that another node that leads
// finds it; nil where none has said anything.
func (a *act) finalStatus(ctx context.Context) *control.Status {
	_ = a.eachOf(ctx, a.answering(), func(ctx context.Context, w *worker) error { // what is not said now was said before
		s, err := a.at(w.process).Status(ctx, w.process)
		if err == nil && s.Generation == a.Generation {
			w.status = &s
		}
		return err
	})
	last := joined(a.workers)
	if last == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	var all []func()
	for _, n := range a.nodes() {
		if _, away := a.away[n.Name]; n.Name == a.here.Name || slices.Contains(hosts(a.Job), n.Name) && !away {
			all = append(all, func() {
				if err := n.Agent.KeepStatus(bounded, a.ID, last); err != nil { // for show only: the job is what Raft says it is
					a.log.Warn("keep the last status", zap.String("job", a.ID), zap.String("node", n.Name), zap.Error(err))
				}
			})
		}
	}
	a.together(all)
	return last
}
