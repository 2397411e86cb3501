package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Agent runs the processes of jobs on one host. Methods may be called concurrently. Those with a context may block until that ends: on
// a process, a disk or a network.
type Agent interface {
	// Processes lists the processes of jobs that run on the host, whoever started them.
	Processes(ctx context.Context) ([]Running, error)
	// Start starts a job's worker in the job's directory, which is there, and kills whatever else works in it: two workers never
	// train in one. The agent fills in what of the assignment is the host's business: Node, Dir, and how to log and to be orphaned. An
	// error that is an obstacle (obstacle.Of) may pass.
	Start(ctx context.Context, a control.Assignment) (Process, error)
	// Tune starts a tuning, in the directory of its job or, without a JobID, in one that goes with it. The agent fills in Node, Dir
	// and Cache.
	Tune(ctx context.Context, r control.TuneRequest) (Process, error)
	// Events calls each with what is seen of a process, one event at a time, until the process has ended. The last one is its exit, after
	// everything else that could still be read. It returns earlier only with an error: ctx has ended, or ErrNoProcess. Events of one
	// process are asked for once.
	Events(ctx context.Context, p Process, each func(Event)) error
	// Status asks a worker how it is.
	Status(ctx context.Context, p Process) (control.Status, error)
	// Commit asks a worker for the shards of a round; they come as events.
	Commit(ctx context.Context, p Process, r control.CommitRequest) (control.CommitResponse, error)
	// Stop tells a worker to end without committing. It returns before the worker has ended.
	Stop(ctx context.Context, p Process) error
	// Kill ends a process at once. One that has ended is no error.
	Kill(ctx context.Context, p Process) error
	Files
	// Passed returns nil when what kept a process of this host from going on is over.
	Passed(ctx context.Context, o obstacle.Obstacle) error
	// Log adds a line to a job's log. It does not block; a line that cannot be written is lost.
	Log(job string, level zapcore.Level, message string, fields ...zap.Field)
}

// Files are what a host keeps of jobs, each in a directory of its own.
type Files interface {
	// Record brings the copy of what the cluster has agreed on about a job up to date, and makes the job's directory. That of another
	// job is refused. started says that jobs have had workers: where no directory of any job is, a mount is late.
	Record(ctx context.Context, j *cluster.Job, started bool) error
	// Retire notes that a job's directory may go once the cluster has forgotten the job. It returns false where there is none.
	Retire(ctx context.Context, j *cluster.Job, reason string) (bool, error)
	// Delete deletes the directory of a retired job.
	Delete(ctx context.Context, job string) error
	// Shards are those of a job.
	Shards(job string) Shards
	// KeepStatus keeps the last status of a job, and KeptStatus returns it; nil where there is none.
	KeepStatus(ctx context.Context, job string, s *control.Status) error
	KeptStatus(ctx context.Context, job string) *control.Status
	// Usage is what a job's directory takes, in bytes, and Disk what the file system has. What cannot be read counts as nothing.
	Usage(ctx context.Context, job string) int64
	Disk(ctx context.Context) (free, size int64, err error)
}

// Shards are the shards of a job on one host.
type Shards interface {
	// Verify reads a shard through and returns its length, and Size only finds that (shard.Store).
	Verify(ctx context.Context, d shard.Digest) (int64, error)
	Size(ctx context.Context, d shard.Digest) (int64, error)
	// Collect takes shards out that nobody needs (shard.Store). The agent decides where those go that nobody expected.
	Collect(ctx context.Context, c shard.Collection) (removed []shard.Digest, err error)
}

// ErrNoProcess is wrapped by the errors of Events, Status, Commit and Stop about a process that has ended, or was never this host's.
var ErrNoProcess = errors.New("there is no such process")

// Process names a process of a job. A generation of a job has one worker on each node.
type Process struct {
	Job        string // "" of a tuning that belongs to no job
	Node       string
	Generation uint64 // of a worker; 0: it is none, or does not say
	ID         process.ID
}

// String names it for people.
func (p Process) String() string {
	return fmt.Sprintf("process %d of job %s on %s", p.ID.PID, p.Job, p.Node)
}

// Running is a process that was found.
type Running struct {
	Process Process
	Status  *control.Status // of a worker that answers
}

// Event is something that was seen of a process. Exactly one of the fields but Process is set.
type Event struct {
	Process Process
	Status  *control.Status
	Silent  time.Duration // how long it took to ask for a status that did not come
	Worker  *control.Event
	Tuning  *control.TuneMessage
	Exit    *Exit
}

// Exit is how a process ended.
type Exit struct {
	Code     int                // -1: a signal, or unknown
	Known    bool               // false where only the daemon that started it could have learned Code
	How      string             // "exit status 1", "signal: killed"
	Memory   string             // that it ended for want of memory, and of whose; "" where nothing says so
	Trouble  string             // the last of what its log says of trouble
	Obstacle *obstacle.Obstacle // that its exit code tells of; nil: none
}

// Cause says for people why a worker or a tuning ended.
func (e *Exit) Cause(what string, p Process) string {
	text := fmt.Sprintf("%sthe %s (process %d) ended: %s", e.Memory, what, p.ID.PID, e.How)
	if e.Trouble != "" {
		text += "; the end of its log: " + e.Trouble
	}
	return text
}
