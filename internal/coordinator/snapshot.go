package coordinator

import (
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// snapshot is everything that decide knows: the replicated state, in the order of submission, and what was observed.
type snapshot struct {
	now      time.Time
	cores    int
	memory   int64 // bytes that jobs may take; 0: not known
	reserved int   // cores of tunings that belong to no job
	stopping bool  // the daemon was asked to end
	limits   Limits
	jobs     []jobView
}

// jobView is one job.
type jobView struct {
	id string

	// Replicated.
	state       api.State
	generation  uint64
	cancelled   bool // somebody asked for it
	stages      int
	cores       int   // that it computes on, or is tuned on
	memory      int64 // bytes of the host that it was promised once it is placed; 0 while it is open
	open        bool  // it is to be tuned before it is placed
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
