package coordinator

import (
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/placer"
)

// snapshot is everything that decide knows: the jobs, in the order of submission, and what concerns them all.
type snapshot struct {
	now      time.Time
	cores    int             // of all nodes
	memory   int64           // bytes that jobs may take on all nodes; 0: not known
	rooms    []placer.Node   // what is free of each node
	holders  []placer.Holder // who has the rest
	gpus     []gpu.GPU       // of all nodes, the sick ones too
	freeGPUs int             // those of them that are not sick and that nobody has
	stopping bool            // the daemon was asked to end
	limits   Limits
	jobs     []*observed
}

// choice is what to do about a job.
type choice uint8

// The choices.
const (
	wait         choice = iota // nothing now; the reason says for what
	tune                       // start measuring what the job leaves open
	resolve                    // make what was measured and chosen the job's
	killTune                   // end the tune process
	place                      // begin the next generation and start its workers from the last committed round
	beginCommit                // make known that round is to be committed
	postCommit                 // ask the workers for their shards
	dropCommit                 // give up the commit in flight for an earlier one
	commitRound                // make the reported shards the last durable round
	setRunning                 // all workers train: say so
	abortWorkers               // tell the workers to end at once
	killWorkers                // make them end
	endJob                     // the job is over: state
	awaitPlace                 // give up what the job has until there is room for it
	resplit                    // have the job go on with fewer groups or stages, if that has room
	regrow                     // have the job go on with the stages that it had at first
	awaitGPUs                  // give up what the job has until there are GPUs for it again
	loseWorkers                // give workers up whose node cannot be reached, so that the generation ends
	probe                      // look whether what the job waits for has passed
	removeJob                  // forget the job and delete its directory
)

// decision is a choice for a job and the reason that its user reads.
type decision struct {
	choice choice
	round  uint64           // of beginCommit, postCommit, dropCommit, commitRound
	stop   bool             // of postCommit: training ends at round
	stages bool             // of resplit: the stages may be fewer, and not the groups alone
	state  cluster.JobState // of endJob
	reason string
	want   placer.Job       // of place and tune: the room that it was given, its own or a whole node
	placed placer.Placement // of place and tune: where that is, beside what is reserved for others
	before bool             // of place and tune: others that were before it wait on, so it goes there and nowhere else
}
