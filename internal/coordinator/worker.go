package coordinator

import (
	"cmp"
	"context"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// phase is where a worker stands.
type phase uint8

// The phases of a worker.
const (
	absent   phase = iota // none was started
	unseen                // an earlier coordinator started it, and its node has not answered yet
	loading               // it runs and has not said yet that it trains
	training              // it trains
	finished              // it has reached its final round and waits
	aborted               // it was told to end
	exited                // it is gone, or could not be started
)

// worker is what was seen of a job's worker on one node.
type worker struct {
	process  agent.Process // without an ID where it could not be started
	phase    phase
	status   *control.Status // the last one; nil: it has said nothing yet
	final    uint64          // the round where training ended, which it says before its status does; 0: it goes on
	accepted uint64          // the last round that it has accepted to commit

	unfollow context.CancelFunc // ends the watch of its events; nil: it is not watched
	cut      time.Time          // since when it cannot be heard, as its node does not answer; zero: it can
	why      string             // it cannot
	node     nodeState          // as of the last tick
	heard    time.Time          // when anything was heard of it last
	quiet    time.Duration      // since then; time in which this process was stopped does not count
	gap      time.Duration      // the longest time yet between two things that were heard
	moved    time.Time          // when it was last seen to make a step
	pace     time.Duration      // the longest time yet between two such moments
	step     uint64             // then
	lost     bool               // it was given up with its node

	polls  int           // that failed since it last said something
	silent time.Duration // that they took

	loaded     control.Loading // when loading was last seen to make progress
	loadingFor time.Duration   // how long it has loaded, by polls that it answered
	stalled    time.Duration   // how much of that was without progress since the last

	failure  *control.Event     // that says why it failed; nil: none did
	ended    time.Time          // when its end was seen
	cause    string             // why it ended
	obstacle *obstacle.Obstacle // that it ended for; nil: none is known
	died     bool               // nobody has told it to end
}

// lives reports whether a worker has not ended.
func (w *worker) lives() bool { return w.phase != absent && w.phase != exited }

// endsAt is the round where a worker's training ends, as far as it has said.
func (w *worker) endsAt() uint64 {
	if w.status == nil {
		return w.final
	}
	return cmp.Or(w.final, w.status.Final)
}

// hear notes that something was heard of a worker.
func (w *worker) hear(now time.Time) {
	if !w.heard.IsZero() {
		w.gap = max(w.gap, min(now.Sub(w.heard), longestGap))
	}
	w.heard, w.quiet, w.cut, w.why = now, 0, time.Time{}, ""
}

// move notes how far a worker is.
func (w *worker) move(step uint64, now time.Time) {
	if step == w.step && !w.moved.IsZero() {
		return
	}
	if !w.moved.IsZero() {
		w.pace = max(w.pace, now.Sub(w.moved))
	}
	w.step, w.moved = step, now
}

func (w *worker) takeStatus(s *control.Status) {
	w.status = s
	w.takeLoading(s.Loading)
	if w.phase == loading && s.Progress.State == api.Running {
		w.phase = training
	}
	w.finish()
}

// How much a process reads or computes that makes progress in loading. Answering polls for minutes takes less.
const (
	loadedBytes = 1 << 20
	loadedCPUS  = 1.0 // seconds
)

// takeLoading notes whether loading makes progress.
func (w *worker) takeLoading(l *control.Loading) {
	if l == nil {
		return
	}
	w.loadingFor += agent.PollStatus
	w.stalled += agent.PollStatus
	if l.ReadBytes >= w.loaded.ReadBytes+loadedBytes || l.CPUSeconds >= w.loaded.CPUSeconds+loadedCPUS {
		w.loaded, w.stalled = *l, 0
	}
}

// finish makes a worker finished once its status is of its final round: the status says whether all steps are done.
func (w *worker) finish() {
	running := w.phase == loading || w.phase == training
	if running && w.final > 0 && w.status != nil && w.status.Progress.Round >= w.final {
		w.phase = finished
	}
}

func (w *worker) takeEvent(e *control.Event) {
	switch e.Kind {
	case control.Finished:
		w.final = e.Round
		w.finish()
	case control.FailedNow:
		w.failure = e
	case control.Shard, control.Started, control.Evaluated, control.Note, control.Refused: // of all workers; its status says so; its own log; its agent
	}
}

// takeExit notes the worker's end. One that was told to end has not died; killed says why it was killed here.
func (w *worker) takeExit(e *agent.Exit, killed string, now time.Time) {
	told := w.phase == aborted // an adopted one's exit code is not known
	w.phase, w.ended = exited, now
	switch {
	case w.failure != nil && w.failure.Obstacle != nil: // it is not the worker that failed
		w.cause, w.obstacle = w.failure.Error, w.failure.Obstacle
	case e.Obstacle != nil:
		w.cause, w.obstacle = e.Obstacle.Text, e.Obstacle
	case told && (e.Code == control.ExitDone || !e.Known):
		w.cause = "the worker ended as it was told to"
	case w.failure != nil:
		w.cause, w.died = w.failure.Error, true
	default:
		w.cause, w.died = cmp.Or(killed, e.Cause("worker", w.process)), true
	}
}

// permanent reports whether the worker failed as the next one would.
func (w *worker) permanent() bool { return w.failure != nil && w.failure.Permanent }

// telling orders the ends of workers by how much they tell: those whose peers are gone fail as well.
func (w *worker) telling() int {
	switch {
	case w.permanent():
		return 4
	case w.obstacle != nil:
		return 3
	case w.lost: // the others have failed because of it
		return 2
	case w.died:
		return 1
	}
	return 0
}

// lastStage is the last of the stages that the worker has told of; -1 before.
func (w *worker) lastStage() int {
	last := -1
	for _, s := range w.status.Progress.StageStatus {
		last = max(last, s.Stage)
	}
	return last
}
