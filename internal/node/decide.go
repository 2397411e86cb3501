package node

import (
	"fmt"
	"math"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// The rules' numbers.
const (
	abortGrace = 5 * time.Second        // for a worker to end after it was told to
	lead       = time.Second            // a commit is begun about this long before its round
	margin     = 300 * time.Millisecond // what is known of a worker's round may be this old
	loadFactor = 4                      // response timeouts without progress in loading before the worker is killed
	leastPolls = 3                      // that fail one after the other before a worker is taken to be dead
)

// world is everything that decide knows: the replicated state, in the order of submission, and what was observed.
type world struct {
	now      time.Time
	cores    int
	lent     int  // cores that are tuned on for nobody's job
	stopping bool // the daemon was asked to end
	rules    rules
	jobs     []jobView
}

// rules are the numbers that the configuration sets.
type rules struct {
	deaths          int           // of workers, without a commit between them, that fail a job
	firstPause      time.Duration // before the second restart without progress; it doubles. The first is at once
	longestPause    time.Duration // that it doubles to
	responseTimeout time.Duration // a worker that does not answer for this long is killed
}

// jobView is one job.
type jobView struct {
	id string

	// Replicated.
	state       api.State
	generation  uint64
	cancelled   bool // somebody asked for it
	stages      int
	cores       int  // that it computes on, or is tuned on
	open        bool // it is to be tuned before it is placed
	commitEvery uint64
	maxTime     time.Duration // 0: no bound
	committed   uint64        // the last durable round; 0: none
	begun       *begun        // the commit in flight of this generation
	remove      string        // of an ended job: why it is to be removed; "" when it is not
	exported    bool          // an export reads its shards

	// Observed.
	worker    workerView
	tuning    tuningView
	hold      holdView
	placing   bool          // a placement, or the beginning of a tuning, is under way
	deaths    int           // of workers since the last commit, of tune processes before the first placement
	retryAt   time.Time     // not before this
	stopSince time.Time     // when the daemon or a user first asked the job to stop; zero: nobody did
	stopBound time.Duration // how long the commit may take that they wait for
}

// holdView is what a job waits for that has no process. Without text it waits for nothing.
type holdView struct {
	text    string
	passed  bool      // it may go on
	probeAt time.Time // not looked at before
}

// waits reports whether an obstacle keeps the job from having a process.
func (j *jobView) waits() bool {
	return j.hold.text != "" && !j.worker.live() && !j.tuning.live && !j.placing
}

// begun is a commit in flight.
type begun struct {
	round   uint64
	posted  bool   // the worker has accepted it
	stop    bool   // and ends there
	refused uint64 // the worker has refused it: the earliest round it can still do; 0: it has not
	shards  int    // reported as durable
}

// phase is where a worker stands.
type phase uint8

// The phases of a worker.
const (
	absent   phase = iota // none was started for this generation
	loading               // it runs and does not train yet
	training              // it trains
	finished              // it has reached its final round and waits
	aborted               // it was told to end
	exited                // it is gone
)

// workerView is what is known of the job's worker.
type workerView struct {
	phase      phase
	round      uint64  // of the center
	final      uint64  // the round where it ends
	earliest   uint64  // the earliest round that a commit can name
	roundsPerS float64 // measured; 0: unknown
	complete   bool    // every optimizer step that the job asks for is done
	elapsed    time.Duration
	silent     time.Duration // time that polls took which failed, one after the other; 0: the last one did not
	polls      int           // how many
	stalled    time.Duration // how long loading has made no progress
	abortedAt  time.Time
	cause      string // of exited: why
	permanent  bool   // of exited: trying again would end the same way
}

// live reports whether the process runs.
func (w workerView) live() bool { return w.phase != absent && w.phase != exited }

// choice is what to do about a job.
type choice uint8

// The choices.
const (
	wait        choice = iota // nothing now; the reason says for what
	tune                      // start measuring what the job leaves open
	resolve                   // make what was measured and chosen the job's
	killTune                  // end the tune process
	place                     // begin the next generation and start its worker from the last committed round
	beginCommit               // make known that round is to be committed
	postCommit                // ask the worker for its shards
	dropCommit                // give up the commit in flight for an earlier one
	commitRound               // make the reported shards the last durable round
	setRunning                // the worker trains: say so
	abortWorker               // tell the worker to end at once
	killWorker                // make it end
	endJob                    // the job is over: state
	probe                     // look whether what the job waits for has passed
	removeJob                 // forget the job and delete its directory
)

// decision is a choice for a job and the reason that its user reads.
type decision struct {
	job    string
	choice choice
	round  uint64    // of beginCommit, postCommit, dropCommit, commitRound
	stop   bool      // of postCommit: training ends at round
	state  api.State // of endJob
	reason string
}

// decide says what to do about every job, in order. It is a pure function. Doing what it says, and observing again, brings
// every job to its end.
func decide(w world) []decision {
	free := w.free()
	var all []decision
	queue := "" // the first job that waits for cores: nobody overtakes it
	for i := range w.jobs {
		j := &w.jobs[i]
		var d decision
		switch {
		case j.placing:
			d = decision{reason: "being placed"}
		case j.state.Ended():
			d = decideEnded(w, j)
		case j.waits() && !j.hold.passed:
			d = decideWaiting(w, j)
		case j.state == api.Queued || j.waits():
			d = decideQueued(w, j, free, queue)
			if d.choice == place || d.choice == tune {
				free -= j.cores
			} else if d.choice == wait && queue == "" {
				queue = j.id
			}
		case j.state == api.Tuning:
			d = decideTuning(w, j)
		default:
			d = decideActive(w, j)
		}
		d.job = j.id
		all = append(all, d)
	}
	return all
}

// free is how many cores nobody has; below 0 when jobs share some.
func (w world) free() int {
	free := w.cores - w.lent
	for i := range w.jobs {
		if j := &w.jobs[i]; j.holdsCores() {
			free -= j.cores
		}
	}
	return free
}

// holdsCores reports whether a job is tuned or placed, or its process has not ended yet. One that waits for an obstacle to pass
// leaves its cores to others: nobody knows how long it will wait.
func (j *jobView) holdsCores() bool {
	if j.waits() {
		return false
	}
	return j.placing || j.worker.live() || j.tuning.live || j.state == api.Tuning || j.state == api.Starting || j.state == api.Running
}

// decideEnded lets the process of a job go that is over.
func decideEnded(w world, j *jobView) decision {
	if j.tuning.live {
		return decision{choice: killTune, reason: "the job is over"}
	}
	switch {
	case j.worker.live():
		return dismiss(w, j, "the job is over")
	case j.remove != "" && j.exported:
		return decision{reason: "to be removed once its export has ended: " + j.remove}
	case j.remove != "":
		return decision{choice: removeJob, reason: j.remove}
	}
	return decision{}
}

// dismiss ends a worker: politely first.
func dismiss(w world, j *jobView, why string) decision {
	if j.worker.phase != aborted {
		return decision{choice: abortWorker, reason: why}
	}
	if w.now.Sub(j.worker.abortedAt) > abortGrace {
		return decision{choice: killWorker, reason: fmt.Sprintf("the worker did not end within %v of being told to", abortGrace)}
	}
	return decision{reason: "waiting for the worker to end: " + why}
}

// decideWaiting looks from time to time whether what a job waits for has passed, for as long as it takes.
func decideWaiting(w world, j *jobView) decision {
	switch {
	case j.cancelled:
		return decision{choice: endJob, state: api.Cancelled, reason: fmt.Sprintf("cancelled while it waited: %s; %s", j.hold.text, kept(j))}
	case w.stopping:
		return decision{reason: "the daemon is stopping; " + kept(j)}
	case w.now.Before(j.hold.probeAt):
		return decision{reason: j.hold.text + "; " + kept(j)}
	}
	return decision{choice: probe, reason: j.hold.text + "; " + kept(j)}
}

// decideQueued starts jobs first come, first served. One that wants more cores than the node has gets them all.
func decideQueued(w world, j *jobView, free int, queue string) decision {
	switch {
	case j.worker.live():
		return dismiss(w, j, "the job starts anew")
	case j.cancelled && j.committed > 0:
		return decision{choice: endJob, state: api.Cancelled, reason: "cancelled before it went on; " + kept(j)}
	case j.cancelled:
		return decision{choice: endJob, state: api.Cancelled, reason: "cancelled before it started"}
	case w.stopping:
		return decision{reason: "queued: the daemon is stopping"}
	case queue != "":
		return decision{reason: fmt.Sprintf("queued behind job %s", queue)}
	case j.cores > free && free < w.cores:
		return decision{reason: "queued: " + coreNeed(j.cores, free, w.cores)}
	}
	why := ""
	if j.hold.text != "" {
		why = "over: " + j.hold.text + "; "
	}
	if j.open {
		return decision{choice: tune, reason: fmt.Sprintf("%stuning on %s", why, coreCount(j.cores))}
	}
	return decision{choice: place, reason: why + "starting: " + coreNeed(j.cores, free, w.cores)}
}

// coreNeed says how many cores a job needs and how many of the node's are free.
func coreNeed(need, free, node int) string {
	if need > node {
		return fmt.Sprintf("asks for %s; the node has %d, which its devices will share, and %d of them are free", coreCount(need), node, max(free, 0))
	}
	return fmt.Sprintf("needs %s, %d of %d are free", coreCount(need), max(free, 0), node)
}

func coreCount(n int) string {
	if n == 1 {
		return "1 core"
	}
	return fmt.Sprintf("%d cores", n)
}

// decideActive looks after a placed job.
func decideActive(w world, j *jobView) decision {
	if !j.worker.live() {
		return decideLost(w, j)
	}
	if j.worker.phase == aborted {
		return dismiss(w, j, "it was told to")
	}
	if j.worker.silent > w.rules.responseTimeout && j.worker.polls >= leastPolls {
		return decision{choice: killWorker, reason: fmt.Sprintf("the worker has not answered for %v, %d times in a row",
			j.worker.silent.Round(time.Second), j.worker.polls)}
	}
	if j.worker.phase == loading {
		if why := stopReason(w, j); why != "" {
			return decision{choice: killWorker, reason: why + " before training began"} // nothing to save
		}
		if j.worker.stalled > loadFactor*w.rules.responseTimeout {
			return decision{choice: killWorker, reason: fmt.Sprintf("loading has made no progress for %v", j.worker.stalled.Round(time.Second))}
		}
		return decision{reason: "the worker is loading"}
	}
	if j.state == api.Starting {
		return decision{choice: setRunning, reason: "training"}
	}
	if d, ok := decideFinished(w, j); ok {
		return d
	}
	if overdue(w, j) {
		return decision{choice: abortWorker, reason: fmt.Sprintf("%s; no commit within %v, so training since round %d is lost",
			stopReason(w, j), j.stopBound, j.committed)}
	}
	if j.begun != nil {
		return decideBegun(w, j)
	}
	return decideNext(w, j)
}

// decideLost restarts a job whose worker is gone, or ends the job.
func decideLost(w world, j *jobView) decision {
	why := j.worker.cause
	if j.worker.phase == absent {
		why = "the daemon was restarted"
	}
	switch {
	case j.worker.permanent:
		return decision{choice: endJob, state: api.Failed, reason: why + "; " + kept(j)}
	case j.cancelled:
		return decision{choice: endJob, state: api.Cancelled, reason: "cancelled; " + kept(j)}
	case w.stopping:
		return decision{reason: "the daemon is stopping; " + kept(j)}
	case j.timeIsUp() && j.committed > 0:
		return decision{choice: endJob, state: api.Done, reason: fmt.Sprintf("train.max_time %v is over; %s", j.maxTime, kept(j))}
	case j.timeIsUp():
		return decision{choice: endJob, state: api.Failed, reason: fmt.Sprintf("train.max_time %v is over; %s", j.maxTime, kept(j))}
	case j.deaths >= w.rules.deaths:
		return decision{choice: endJob, state: api.Failed, reason: fmt.Sprintf(
			"%d workers ended without a new commit between them, the last one so: %s; %s", j.deaths, why, kept(j))}
	case w.now.Before(j.retryAt):
		return decision{reason: fmt.Sprintf("restart %d of %d in %v: %s", j.deaths, w.rules.deaths-1, j.retryAt.Sub(w.now).Round(time.Millisecond), why)}
	}
	return decision{choice: place, reason: why}
}

// kept says what is safe.
func kept(j *jobView) string {
	if j.committed == 0 {
		return "no round was committed"
	}
	return fmt.Sprintf("round %d is the last committed one", j.committed)
}

// pause returns how long to wait before a restart after so many deaths without a commit between them.
func (r rules) pause(deaths int) time.Duration {
	if deaths < 2 {
		return 0
	}
	return min(r.firstPause<<min(deaths-2, 20), r.longestPause)
}

// decideFinished handles a worker that has nothing more to compute, once its final round is durable.
func decideFinished(w world, j *jobView) (decision, bool) {
	if j.worker.phase != finished || j.committed < j.worker.round {
		return decision{}, false
	}
	switch {
	case j.worker.complete:
		return decision{choice: endJob, state: api.Done, reason: fmt.Sprintf("all steps are done; round %d is committed", j.committed)}, true
	case j.timeIsUp():
		return decision{choice: endJob, state: api.Done, reason: fmt.Sprintf(
			"train.max_time %v is over; round %d is committed", j.maxTime, j.committed)}, true
	case j.cancelled:
		return decision{choice: endJob, state: api.Cancelled, reason: fmt.Sprintf("cancelled; round %d is committed", j.committed)}, true
	case w.stopping:
		return decision{choice: abortWorker, reason: fmt.Sprintf("the daemon is stopping; round %d is committed", j.committed)}, true
	}
	return decision{choice: abortWorker, reason: fmt.Sprintf("it was stopped at round %d by a daemon that is gone", j.committed)}, true
}

// timeIsUp reports whether the job has trained for as long as it may.
func (j *jobView) timeIsUp() bool { return j.maxTime > 0 && j.worker.elapsed >= j.maxTime }

// overdue reports whether the commit that somebody waits for takes too long.
func overdue(w world, j *jobView) bool {
	return !j.stopSince.IsZero() && w.now.Sub(j.stopSince) > j.stopBound
}

// stopReason says why training is to end now; "" when it is not.
func stopReason(w world, j *jobView) string {
	switch {
	case j.cancelled:
		return "cancelled"
	case w.stopping:
		return "the daemon is stopping"
	case j.timeIsUp():
		return fmt.Sprintf("train.max_time %v is over", j.maxTime)
	}
	return ""
}

// decideBegun brings a commit in flight to its end.
func decideBegun(w world, j *jobView) decision {
	round, stop := j.begun.round, stopReason(w, j) != ""
	switch {
	case j.begun.shards == j.stages:
		return decision{choice: commitRound, round: round, reason: fmt.Sprintf("all %d shards of round %d are durable", j.stages, round)}
	case stop && !j.begun.stop && j.soonest() < round:
		return decision{choice: dropCommit, round: round, reason: fmt.Sprintf("%s, and round %d is far", stopReason(w, j), round)}
	case round > j.worker.final: // it was begun before the worker knew its budget
		return decision{choice: dropCommit, round: round, reason: fmt.Sprintf("training ends before round %d, at round %d", round, j.worker.final)}
	case j.begun.refused > 0 && round < j.worker.final:
		next := min(max(j.begun.refused+j.worker.rounds(margin), round+1), j.worker.final)
		return decision{choice: beginCommit, round: next, reason: fmt.Sprintf("the worker is past round %d already", round)}
	case !j.begun.posted:
		return decision{choice: postCommit, round: round, stop: stop, reason: fmt.Sprintf("round %d is begun", round)}
	}
	return decision{reason: fmt.Sprintf("%d of %d shards of round %d are durable", j.begun.shards, j.stages, round)}
}

// decideNext begins the next commit: the final one, one that somebody waits for, or the next that is due.
func decideNext(w world, j *jobView) decision {
	k := j.worker
	if k.phase == finished {
		return decision{choice: beginCommit, round: k.round, reason: "training has ended at this round"}
	}
	if j.committed >= k.final {
		return decision{reason: fmt.Sprintf("round %d, the final one, is committed; the worker is finishing", j.committed)}
	}
	if why := stopReason(w, j); why != "" {
		return decision{choice: beginCommit, round: j.soonest(), reason: why}
	}
	due := min((j.committed/j.commitEvery+1)*j.commitEvery, k.final)
	if k.roundsPerS > 0 && k.round+1+k.rounds(lead) < due { // one whose speed is not known yet may be fast
		return decision{reason: fmt.Sprintf("training; the next commit is due at round %d", due)}
	}
	return decision{choice: beginCommit, round: max(due, j.soonest()), reason: fmt.Sprintf("a commit is due every %d rounds", j.commitEvery)}
}

// soonest returns the earliest round whose commit the worker will hear of in time.
func (j *jobView) soonest() uint64 {
	k := j.worker
	return min(max(k.earliest+k.rounds(margin), j.committed+1), k.final)
}

// rounds returns how many rounds the worker may complete in a time; 1 while it is not known how fast it is.
func (w workerView) rounds(d time.Duration) uint64 {
	if w.roundsPerS <= 0 {
		return 1
	}
	return uint64(math.Ceil(w.roundsPerS * d.Seconds()))
}
