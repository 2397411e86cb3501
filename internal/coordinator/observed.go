package coordinator

import (
	"context"
	"math"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/drift"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// minStopBound is how long at least a commit may take that somebody waits for.
const minStopBound = 10 * time.Second

// observed is what the coordinator has seen of a job that the replicated state does not know. It belongs to the coordinator's
// goroutine.
type observed struct {
	worker // the current or the last one; absent: none was started here

	tuning *tuning       // the current or the last one; nil: none was started here
	took   time.Duration // the longest commit of this job yet, from its round on

	deaths    int       // since the last commit
	diedAt    time.Time // the last of them
	stopSince time.Time
	hold      *hold // what the job waits for; nil: nothing

	acting    bool      // a choice is being carried out
	choice    choice    // which one, when acting
	taking    []int     // the cores that it gives to a process
	notBefore time.Time // nothing is done before: the last choice could not be carried out
	note      string    // the reason of the last choice, for people

	remove string // why the ended job is to be removed; "" when it is not
}

// worker is what was seen of a worker.
type worker struct {
	process   agent.Process // zero: it could not be started
	phase     phase
	status    *control.Status // the last one
	polls     int             // that failed since it last said something
	silent    time.Duration   // that they took
	abortedAt time.Time
	failure   *control.Event // its last words
	cause     string         // why it ended
	killed    string         // why it was killed here

	loaded     control.Loading // when loading was last seen to make progress
	loadingFor time.Duration   // how long it has loaded, by polls that it answered
	stalled    time.Duration   // how much of that was without progress since the last

	final   uint64                               // the round where training ended; 0: it goes on
	rounds  []sighting                           // recent ones, oldest first
	shards  map[uint64]map[int]control.ShardInfo // by round and stage
	posted  uint64                               // the round that it has accepted to commit
	stopAt  uint64                               // the round where it was told to end
	refused map[uint64]uint64                    // by round: the earliest one it offered instead
	reached time.Time                            // when its round was seen to be reached; zero: not yet

	drift     drift.Watch
	comparing bool // with its prediction, in the background
}

// newWorker begins the account of a worker.
func newWorker(p agent.Process) worker {
	return worker{process: p, phase: loading, shards: map[uint64]map[int]control.ShardInfo{}, refused: map[uint64]uint64{}}
}

// lives reports whether there is a worker that has not ended.
func (o *worker) lives() bool { return o.phase != absent && o.phase != exited }

// sighting is a round that was seen at a time.
type sighting struct {
	at    time.Time
	round uint64
}

// speedWindow is how far back the speed of a worker is measured.
const speedWindow = 5 * time.Second

// take notes an event of the current worker.
func (o *observed) take(e agent.Event, now time.Time) {
	if e.Silent > 0 {
		o.polls, o.silent = o.polls+1, o.silent+e.Silent
		return
	}
	o.polls, o.silent = 0, 0
	switch {
	case e.Status != nil:
		o.takeStatus(e.Status, now)
	case e.Worker != nil:
		o.takeEvent(e.Worker)
	case e.Exit != nil:
		o.takeExit(e.Exit, now)
	}
}

func (o *observed) takeStatus(s *control.Status, now time.Time) {
	o.status = s
	o.takeLoading(s.Loading)
	o.rounds = append(o.rounds, sighting{now, s.Progress.Round})
	for now.Sub(o.rounds[0].at) > speedWindow {
		o.rounds = o.rounds[1:]
	}
	if o.phase == loading && s.Progress.State == control.Training {
		o.phase, o.hold = training, nil
	}
	if o.posted > 0 && o.reached.IsZero() && s.Progress.Round >= o.posted {
		o.reached = now
	}
	o.finish()
}

// How much a process reads or computes that makes progress in loading. Answering polls for minutes takes less.
const (
	loadedBytes = 1 << 20
	loadedCPUS  = 1.0 // seconds
)

// takeLoading notes whether loading makes progress.
func (o *worker) takeLoading(l *control.Loading) {
	if l == nil {
		return
	}
	o.loadingFor += agent.PollStatus
	o.stalled += agent.PollStatus
	if l.ReadBytes >= o.loaded.ReadBytes+loadedBytes || l.CPUSeconds >= o.loaded.CPUSeconds+loadedCPUS {
		o.loaded, o.stalled = *l, 0
	}
}

// finish makes a worker finished once its status is of its final round: the status says whether all steps are done.
func (o *worker) finish() {
	running := o.phase == loading || o.phase == training
	if running && o.final > 0 && o.status != nil && o.status.Progress.Round >= o.final {
		o.phase = finished
	}
}

func (o *observed) takeEvent(e *control.Event) {
	switch e.Kind {
	case control.Started:
		if o.phase == loading {
			o.phase, o.hold = training, nil
		}
	case control.Shard:
		if e.Shard == nil {
			return
		}
		if o.shards[e.Round] == nil {
			o.shards[e.Round] = map[int]control.ShardInfo{}
		}
		o.shards[e.Round][e.Shard.Stage] = *e.Shard
	case control.Finished:
		o.final = e.Round
		o.finish()
	case control.FailedNow:
		o.failure = e
	case control.Evaluated, control.Note: // the worker's own log has them
	}
}

// takeExit notes the worker's end. One that was told to end has not died.
func (o *observed) takeExit(e *agent.Exit, now time.Time) {
	told := o.phase == aborted // an adopted one's exit code is not known
	o.phase = exited
	if o.failure != nil && o.failure.Obstacle != nil { // it is not the worker that failed
		o.cause = o.failure.Error
		o.waitFor(o.failure.Obstacle, now)
		return
	}
	if e.Obstacle != nil {
		o.cause = e.Obstacle.Text
		o.waitFor(e.Obstacle, now)
		return
	}
	o.hold = nil
	if told && (e.Code == control.ExitDone || !e.Known) {
		o.cause = "the worker ended as it was told to"
		return
	}
	switch {
	case o.failure != nil:
		o.cause = o.failure.Error
	case o.killed != "":
		o.cause = o.killed
	default:
		o.cause = e.Cause("worker", o.process)
	}
	o.die(now)
}

// die counts a death.
func (o *observed) die(now time.Time) {
	o.deaths++
	o.diedAt = now
}

// speed is how many rounds a second the worker completes; 0 while that is not known.
func (o *worker) speed() float64 {
	if len(o.rounds) < 2 {
		return 0
	}
	first, last := o.rounds[0], o.rounds[len(o.rounds)-1]
	if last.round <= first.round || !last.at.After(first.at) {
		return 0
	}
	return float64(last.round-first.round) / last.at.Sub(first.at).Seconds()
}

// forget drops what was reported of the commit of a round.
func (o *worker) forget(round uint64) {
	delete(o.shards, round)
	if o.posted == round {
		o.posted, o.reached = 0, time.Time{}
	}
}

// stopBound is how long a commit may take that somebody waits for: three times the longest one yet, and the rounds up to where the
// worker was told to end, with three more.
func (o *observed) stopBound() time.Duration {
	bound := max(minStopBound, 3*o.took)
	if v := o.speed(); v > 0 {
		left := 3 + max(float64(o.stopAt)-float64(o.status.Progress.Round), 0)
		bound = max(bound, time.Duration(math.Ceil(left/v))*time.Second)
	}
	return bound
}

// view joins what is replicated and what was observed.
func (o *observed) view(j *cluster.Job, s *spec.Spec, w *snapshot) jobView {
	v := jobView{
		id: j.ID, state: api.State(j.State), generation: j.Generation, cancelled: j.Cancelling,
		stages: s.Stages(), cores: s.Cores(w.cores), memory: s.HostBytes(), open: s.Job.Open(), commitEvery: uint64(s.Job.Center.CommitEvery), maxTime: s.Job.Train.MaxTime,
		placing: o.acting && (o.choice == place || o.choice == tune), deaths: o.deaths,
		retryAt: o.diedAt.Add(w.limits.pause(o.deaths)), hold: o.hold.view(),
		stopSince: o.stopSince, stopBound: o.stopBound(), remove: o.remove,
		worker: workerView{phase: o.phase, silent: o.silent, polls: o.polls, abortedAt: o.abortedAt, roundsPerS: o.speed()},
	}
	if t := o.tuning; t != nil {
		v.tuning = tuningView{
			live: t.live, silent: t.silent, bound: t.silence(), text: t.text(), chosen: t.report != nil && !t.live, failure: t.failure, cause: t.cause,
		}
	}
	if m := j.LastCommitted(); m != nil {
		v.committed = m.Round
	}
	if j.Pending > 0 {
		v.begun = &begun{
			round: j.Pending, posted: o.posted == j.Pending, stop: o.stopAt == j.Pending, refused: o.refused[j.Pending], shards: len(o.shards[j.Pending]),
		}
	}
	if o.phase == exited {
		v.worker.cause = o.cause
		v.worker.permanent = o.failure != nil && o.failure.Permanent
	}
	if o.phase == training && o.status == nil {
		v.worker.phase = loading // until it has said where it stands
	}
	if s := o.status; s != nil {
		v.worker.round, v.worker.final, v.worker.earliest = s.Progress.Round, s.Final, s.NextCommit
		if o.final > 0 {
			v.worker.final = o.final // newer than the status as well
		}
		for _, offered := range o.refused { // newer than the status: without it, the same round would be asked for again and again
			v.worker.earliest = max(v.worker.earliest, offered)
		}
		v.worker.complete = s.Progress.Steps > 0 && s.Progress.Step >= s.Progress.Steps
		v.worker.elapsed = time.Duration(s.Progress.ElapsedS*float64(time.Second)) + o.loadingFor
		v.worker.stalled = o.stalled
	}
	return v
}

// probeBound is how long it may take to find out whether an obstacle has passed, before the job is decided about again.
const probeBound = 5 * time.Second

// hold is an obstacle that a job without a process waits for. It is observed and not replicated: it is a fact about this host,
// Raft may share the disk that is full, and the next daemon meets the same obstacle when it places the job.
type hold struct {
	obstacle obstacle.Obstacle
	tries    int       // probes, and placements that met an obstacle again
	probeAt  time.Time // when it is looked at next
	passed   bool
}

// waitFor makes the job wait until an obstacle has passed. Pauses grow until the job trains again.
func (o *observed) waitFor(what *obstacle.Obstacle, now time.Time) {
	h := &hold{obstacle: *what}
	if o.hold != nil {
		h.tries = o.hold.tries + 1
	}
	h.probeAt = now.Add(obstacle.Pause(h.tries))
	o.hold = h
}

// waits reports whether the job waits for an obstacle to pass, and has no process meanwhile.
func (o *observed) waits() bool {
	return o.hold != nil && (o.phase == absent || o.phase == exited) && !o.tunes()
}

// view is what decide knows of a hold. A nil one is none.
func (h *hold) view() holdView {
	if h == nil {
		return holdView{}
	}
	return holdView{text: h.obstacle.String(), passed: h.passed, probeAt: h.probeAt}
}

// probe looks whether what the job waits for has passed, for a bounded time.
func (a *act) probe(ctx context.Context) func(*observed) {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	err := a.agent.Passed(ctx, a.hold.obstacle)
	return func(o *observed) {
		if o.hold != a.hold {
			return // a person was faster
		}
		o.hold.passed = err == nil
		o.hold.tries++
		o.hold.probeAt = time.Now().Add(obstacle.Pause(o.hold.tries))
	}
}
