package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/history"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
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
	// everything else that could still be read. It returns earlier only with an error: ctx has ended, ErrNoProcess or ErrUnreachable. After
	// any but ErrNoProcess events may be asked for again, also by another: what a worker has said, and its exit, come again then.
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
	// Info says what the host has.
	Info(ctx context.Context) (Info, error)
	// Listen opens the port for the links of the worker that Start starts next for a job and its generation, and returns its address,
	// host:port; "" where the host is alone. It replaces what was opened for the job before, and is closed when no worker takes it for
	// a while.
	Listen(ctx context.Context, job string, generation uint64) (address string, err error)
	// Probe measures the way from this host to another node, for less than a second.
	Probe(ctx context.Context, node string) (Link, error)
	// Look says what of that a job reads is missing on this host, as far as that can be seen with the rights of the job's user, within
	// seconds. What it reads from elsewhere begins to come, and comes as long as somebody looks from time to time.
	Look(ctx context.Context, s *spec.Spec) (Sight, error)
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
	// Keep keeps a small file in the job's directory, which is there, and Object reads it: MaxObject bytes at most. An absent one
	// wraps fs.ErrNotExist.
	Keep(ctx context.Context, job string, object []byte) (shard.Digest, error)
	Object(ctx context.Context, job string, d shard.Digest) ([]byte, error)
	// Companion reads a file that goes with the job's model when that is exported, by its name: MaxCompanion bytes at most.
	Companion(ctx context.Context, job, name string) ([]byte, error)
	// OpenLog opens a job's log at the place that the request says, or at its beginning. The caller closes the reader.
	OpenLog(ctx context.Context, job string, r api.LogRequest) (LogReader, error)
	// History reads how a job's training went, and says how many records could not be read.
	History(ctx context.Context, job string) (records []history.Record, damaged int, err error)
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
	// Fetch makes a shard durable here that has so many bytes: it reads it from the first of these nodes that has it whole, and with it what goes with
	// the model that the shard names, where that can be had. One that is here whole is not read again. Fetch may be asked for again after any error; one that is an obstacle (obstacle.Of) may pass.
	Fetch(ctx context.Context, d shard.Digest, bytes int64, from []string) error
	// Open opens a shard without looking into it, and returns its length. The caller closes it.
	Open(ctx context.Context, d shard.Digest) (io.ReadCloser, int64, error)
}

// LogReader reads the entries of a log.
type LogReader interface {
	// Next returns the next entry that was asked for, a JSON object with a cursor, or io.EOF while there is none. ended says that
	// nothing more will be written, so that half a line at the end is an entry.
	Next(ended bool) ([]byte, error)
	// Place is the cursor after what Next has looked at; "" where the log is not there yet.
	Place() string
	Close() error
}

// Bounds of files of a job that are read whole, in bytes.
const (
	MaxObject    = 4 << 20
	MaxCompanion = 64 << 20 // of a tokenizer with a large vocabulary
)

// Info is what a host has for jobs.
type Info struct {
	Node        string    `json:"node"`
	Cores       []int     `json:"cores"`        // that jobs compute on
	MemoryBytes int64     `json:"memory_bytes"` // that jobs may take; 0: not known
	GPUs        []gpu.GPU `json:"gpus"`         // that jobs may use, the sick ones too
	Excluded    []string  `json:"excluded"`     // UUIDs of GPUs that somebody has taken from jobs
	Version     string    `json:"version"`      // of the daemon
	Boot        string    `json:"boot"`         // of the host, as its kernel names it
	GFLOPs      float64   `json:"gflops"`       // that a core does in a second, as measured; 0: not known
}

// Sight is what a host has not of that a job reads.
type Sight struct {
	// Data says what is missing, or is not what it was when the job was submitted, of that every worker of the job reads; "": nothing.
	Data string `json:"data,omitempty"`
	// Model says so of what every stage begins with that goes on from no round.
	Model string `json:"model,omitempty"`
	// Fetching says how far it is to have here what the job reads from elsewhere, while that comes; "": all of it is here, or it does not come, which
	// Data says.
	Fetching string `json:"fetching,omitempty"`
	// Gone says that this will never come: it is not there any more as it was; "": nobody knows that.
	Gone string `json:"gone,omitempty"`
}

// Link is the way from one node to another.
type Link struct {
	RTT            time.Duration `json:"rtt"`
	BytesPerSecond float64       `json:"bytes_per_second"`
}

// ErrUnreachable is wrapped by errors about a node that does not answer, or stopped to while it was asked: nobody knows whether it did
// what it was asked for. Events may be asked for again then.
var ErrUnreachable = errors.New("the node cannot be reached")

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
