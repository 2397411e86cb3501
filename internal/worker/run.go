package worker

import (
	"cmp"
	"context"
	"errors"
	"io"
	"runtime"
	"runtime/debug"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/internal/logging"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// Config says what a worker process is to do.
type Config struct {
	Assignment string    // path of the assignment file
	Log        io.Writer // gets JSON lines
	// Graphics says where the libraries of GPUs are; the assignment says which GPUs.
	Graphics cuda.Config
}

// errAborted is the end of a worker that was told to stop.
var errAborted = errors.New("worker: told to stop")

// garbage is how much of the Go heap may be garbage, in percent of what lives there. The heap is mostly a few vectors without pointers, the copies that
// commits write, which cost a collection nothing; with Go's default of 100 it could grow to twice what internal/footprint predicts.
const garbage = 25

// Run is the worker process, from its assignment to its exit code (package control). It returns after everything that it
// started has ended.
func Run(ctx context.Context, c Config) (int, error) {
	a, plan, err := loadAssignment(c.Assignment)
	if err != nil {
		return control.ExitInvalid, err
	}
	log := logging.New(c.Log, logging.Level(a.LogLevel)).With(zap.String("job", a.JobID), zap.Uint64("generation", a.Generation))
	defer log.Sync() //nolint:errcheck // standard error needs none
	lock, err := lockDir(a.Dir)
	if errors.Is(err, errBusy) {
		return control.ExitBusy, err
	}
	if err != nil {
		return control.ExitFailed, err
	}
	defer lock.Close() //nolint:errcheck // nothing was written to it
	debug.SetGCPercent(garbage)
	t := newTrainer(a, plan, log)
	t.graphics = c.Graphics
	err = t.serveAndTrain(ctx)
	switch {
	case errors.Is(err, errAborted):
		log.Info("ended as told", zap.Uint64("round", t.Status().Progress.Round))
		return control.ExitDone, nil
	case errors.Is(err, control.ErrOrphan):
		log.Error("ended", zap.Error(err))
		return control.ExitOrphan, err
	case err != nil:
		return control.ExitFailed, err
	}
	return control.ExitDone, nil
}

// serveAndTrain answers the daemon from the start, while it loads and trains, until the first of them ends.
func (t *trainer) serveAndTrain(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.cancel = cancel
	listener, err := control.Listen(ctx, control.SocketPath(t.assignment.Dir))
	if err != nil {
		return err
	}
	server := &control.Server{Trainer: t, Events: t.events}
	// The server outlives training, so that the daemon can read how it ended.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := server.Serve(serving, listener)
		if err != nil {
			cancel(err)
		}
		return err
	})
	group.Go(func() error {
		err := server.WatchOrphan(ctx, t.assignment.OrphanAfter)
		if err != nil {
			cancel(err)
		}
		return nil
	})
	group.Go(func() error {
		t.rotateLog(ctx)
		return nil
	})
	group.Go(func() error {
		defer stopServing()
		err := t.train(ctx)
		if cause := context.Cause(ctx); cause != nil {
			err = cause // why it was ended; what it then says itself follows from that
		}
		if err == nil {
			err = errAborted // the group lingers until then
		}
		t.explain(ctx, err)
		return err
	})
	return group.Wait()
}

// explain reports an end that is a failure of training, as against one that somebody asked for.
func (t *trainer) explain(ctx context.Context, err error) {
	if !errors.Is(err, errAborted) && !errors.Is(err, control.ErrOrphan) && !errors.Is(err, context.Canceled) {
		t.fail(ctx, err)
	}
}

// fail tells the daemon why training ended, before the process does.
func (t *trainer) fail(ctx context.Context, err error) {
	t.log.Error("training failed", zap.Error(err))
	t.events.Append(control.Event{
		Kind: control.FailedNow, Error: err.Error(), Permanent: Permanent(err),
		Obstacle: obstacle.Of(err),
	})
	t.progress.failed()
	t.events.Drain(ctx, drainTimeout)
}

// train is the worker's work, from opening the model to the end of the group.
func (t *trainer) train(ctx context.Context) (err error) {
	h, err := newHost(ctx, t.assignment, t.plan, t.graphics, t.log)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, h.close()) }() // devices that have failed say so again
	t.describe(h)
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), pipeline.Processors(len(h.devices))))
	reach, err := newLinks(ctx, t.assignment, t.progress, sayRefused(t.log, t.events))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, reach.close()) }()
	group, err := t.newGroup(ctx, h, reach)
	if err != nil {
		return err
	}
	t.history = t.openHistory(ctx, len(h.stages), h.budget)
	defer t.history.end()
	t.group.Store(group)
	return group.Run(ctx)
}
