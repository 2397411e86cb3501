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

// observed is a job as the coordinator sees it: what is agreed on and was admitted, as of the last tick, and what the replicated state
// does not know. It belongs to the coordinator's goroutine.
type observed struct {
	*cluster.Job

	spec     *spec.Spec
	cores    int   // that it computes on, or is tuned on
	memory   int64 // bytes of the host that it is promised once it is placed; 0 while it is open
	exported bool  // an export reads its shards

	worker // the current or the last one; absent: none was started here

	tuning *tuning       // the current or the last one; nil: none was started here
	took   time.Duration // the longest commit of this job yet, from its round on

	deaths    int       // of workers since the last commit, of tune processes before the first placement
	diedAt    time.Time // the last of them
	stopSince time.Time // when the daemon or a user first asked the job to stop; zero: nobody did
	hold      *hold     // what the job waits for; nil: nothing

	acting    bool      // a choice is being carried out
	choice    choice    // which one, when acting
	taking    []int     // the cores that it gives to a process
	notBefore time.Time // nothing is done before: the last choice could not be carried out
	note      string    // the reason of the last choice, for people

	remove string // why the ended job is to be removed; "" when it is not
}

// phase is where a worker stands.
type phase uint8

// The phases of a worker.
const (
	absent   phase = iota // none was started for this generation
	loading               // it runs and has not said yet that it trains
	training              // it trains
	finished              // it has reached its final round and waits
	aborted               // it was told to end
	exited                // it is gone
)

// worker is what was seen of a worker.
type worker struct {
	process   agent.Process // zero: it could not be started
	phase     phase
	status    *control.Status // the last one; nil: it has said nothing yet
	polls     int             // that failed since it last said something
	silent    time.Duration   // that they took
	abortedAt time.Time
	failure   *control.Event // that says why it failed; nil: none did
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
	if o.phase == loading && s.Progress.State == api.Running {
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
	case control.Started, control.Evaluated, control.Note: // its status says so, and its own log
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
		left := 3 + max(float64(o.stopAt)-float64(o.round()), 0)
		bound = max(bound, time.Duration(math.Ceil(left/v))*time.Second)
	}
	return bound
}

// round is the center's, as far as the worker has said.
func (o *worker) round() uint64 {
	if o.status == nil {
		return 0
	}
	return o.status.Progress.Round
}

// lastRound is the round where training ends, as far as the worker has said.
func (o *worker) lastRound() uint64 {
	if o.final > 0 || o.status == nil {
		return o.final // newer than the status
	}
	return o.status.Final
}

// earliest is the earliest round that a commit can name. What the worker refused is newer than its status: without it, the same round would
// be asked for again and again.
func (o *worker) earliest() (round uint64) {
	if o.status != nil {
		round = o.status.NextCommit
	}
	for _, offered := range o.refused {
		round = max(round, offered)
	}
	return round
}

// complete reports whether every optimizer step that the job asks for is done.
func (o *worker) complete() bool {
	return o.status != nil && o.status.Progress.Steps > 0 && o.status.Progress.Step >= o.status.Progress.Steps
}

// placing reports whether a placement, or the beginning of a tuning, is under way.
func (o *observed) placing() bool { return o.acting && (o.choice == place || o.choice == tune) }

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
	return o.hold != nil && !o.lives() && !o.tunes()
}

// probe looks whether what the job waits for has passed, for a bounded time.
func (a *act) probe(ctx context.Context) (func(*observed), error) {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	err := a.agent.Passed(ctx, a.hold.obstacle)
	return func(o *observed) {
		if o.hold != a.hold {
			return // somebody has resumed the job meanwhile
		}
		o.hold.passed = err == nil
		o.hold.tries++
		o.hold.probeAt = time.Now().Add(obstacle.Pause(o.hold.tries))
	}, nil
}
