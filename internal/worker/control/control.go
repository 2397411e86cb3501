// Package control is what a daemon and a worker process say to each other: the assignment that starts a worker, and HTTP with
// JSON bodies over the worker's unix socket after that. A worker outlives the daemon's restart: the new daemon finds
// the socket in the job's directory and adopts the worker.
//
//	worker start:  avgpiped worker --assignment DIR/assignment.json   (the socket is DIR/worker.sock)
//	GET  /status              -> Status
//	GET  /events?after=SEQ    -> Event per line, from SEQ+1 on, for as long as the worker lives
//	POST /commit  CommitRequest -> CommitResponse
//	POST /abort               -> 204; the worker stops at once without committing and exits 0
package control

import (
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/noisescale"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
)

// Exit codes of a worker process.
const (
	ExitDone    = 0 // finished, stopped at a committed round, or aborted
	ExitFailed  = 1 // the last Event says why
	ExitInvalid = 2 // the assignment is not usable
	ExitOrphan  = 3 // no daemon came for Assignment.OrphanAfter
	ExitBusy    = 4 // another worker trains in Assignment.Dir
)

// Assignment tells a worker everything: what to compute, with whom, and where to start. It is the file assignment.json in Dir.
type Assignment struct {
	Version    int          `json:"version"` // Version
	JobID      string       `json:"job"`
	Generation uint64       `json:"generation"`
	Node       string       `json:"node"`
	Dir        string       `json:"dir"`    // of the job on this node: socket, shards, log
	Spec       spec.Spec    `json:"spec"`   // resolved; without a budget, the worker finds it once it knows how long an epoch is
	Stages     []StagePlace `json:"stages"` // all of the plan, in order, of the worker's group of pipelines
	// Groups are the places of every group of pipelines, and Group is the worker's among them. Nil: there is one, whose places are Stages.
	Groups [][]StagePlace `json:"groups,omitempty"`
	Group  int            `json:"group,omitempty"`
	// NoiseAcross has the stages of a group of pipelines that lie on several nodes measure the noise in gradients together, which those of programs before do not know. Stages on one node do
	// so without it.
	NoiseAcross bool     `json:"noise_across,omitempty"`
	Plan        []string `json:"plan"` // one line a device, the grammar of package schedule
	// Data is the directory of copies of what the job reads from elsewhere (Spec.Remote) on this node.
	Data string `json:"data,omitempty"`
	// Cores are the processor cores that this worker's devices are pinned to, in order, each device taking its threads from
	// the front. Empty: no pinning.
	Cores []int `json:"cores,omitempty"`
	// Restore is the committed round to resume from. Its Meta is a RoundMeta.
	Restore *cluster.Manifest `json:"restore,omitempty"`
	// OrphanAfter ends a worker that no daemon has asked anything of for this long.
	OrphanAfter time.Duration `json:"orphan_after"`
	// LogBytes is how long the log may grow before the worker rotates it, and LogFiles how many rotated ones are kept. 0: never.
	LogBytes int64 `json:"log_bytes,omitempty"`
	LogFiles int   `json:"log_files,omitempty"`
	// LogLevel is the least severe level that the worker logs; empty is info.
	LogLevel string `json:"log_level,omitempty"`
	// LinkFD is the number of the descriptor, inherited, of the TCP listener for links from other nodes, at the Address of this node's
	// stages. 0: none was opened.
	LinkFD int `json:"link_fd,omitempty"`
	// TLS names what links between nodes identify themselves with. Nil: they are not encrypted.
	TLS *LinkTLS `json:"tls,omitempty"`
	// UCX names the network devices of this node on which links may go over UCX, which does not encrypt. Empty: none.
	UCX string `json:"ucx,omitempty"`
}

// LinkTLS are paths of PEM files of the node, which are read again when they change.
type LinkTLS struct {
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	Authority   string `json:"authority"` // the certificates of the cluster's authority
}

// Version is that of assignments and tune requests.
const Version = 4

// StagePlace says which node hosts a stage, on which of its GPUs, and where its links listen.
type StagePlace struct {
	Node    string `json:"node"`
	GPU     string `json:"gpu,omitempty"` // its UUID; empty: on none
	Address string `json:"address"`       // host:port for links from other nodes; empty on a lone node
}

// Shared are the first of the pipelines of the worker's group, and the one after its last.
func (a *Assignment) Shared() (from, to int) {
	n := a.Spec.Job.Shared()
	return a.Group * n, (a.Group + 1) * n
}

// RoundMeta is what a manifest keeps beside the shards, for status after a restart.
type RoundMeta struct {
	ElapsedS  float64  `json:"elapsed_s"` // training time up to this round, over all generations
	Loss      *float64 `json:"loss"`
	EvalLoss  *float64 `json:"eval_loss"`
	EvalRound uint64   `json:"eval_round"`
	api.Metrics
	InitialLoss    *float64 `json:"initial_eval_loss"`
	SamplesSeen    uint64   `json:"samples_seen"`
	DataDigest     string   `json:"data_digest"`
	TargetsPerStep uint64   `json:"targets_per_step"`
	Epoch          uint64   `json:"epoch,omitempty"` // samples in one
	// Budget is what the job trains on, resolved.
	Budget *job.Budget `json:"budget,omitempty"`
	// Distances are how far pipelines are from the center, and predicted weights from their own, as shares of the center's length; none of a single pipeline, or where
	// the round has the center alone.
	Distances []Distance `json:"distances,omitempty"`
	// Noise is what was measured of the noise in gradients, over all generations.
	Noise *noisescale.Moments `json:"noise,omitempty"`
}

// CriticalBatch is what the moments say; nil of none.
func CriticalBatch(m *noisescale.Moments) *api.CriticalBatch {
	if m == nil {
		return nil
	}
	e, why := m.Estimate()
	if e == nil {
		return &api.CriticalBatch{Step: m.Step, Text: "not known yet: " + why}
	}
	return &api.CriticalBatch{Samples: e.Samples, Error: e.Error, Step: e.Step}
}

// Distance is how far a pipeline's weights are from the center, and the weights that its next batch is computed with from its own.
type Distance struct {
	Pipeline  int     `json:"pipeline"`
	Center    float64 `json:"center"`
	Predicted float64 `json:"predicted,omitempty"`
}

// MetaOf is what a committed round keeps for status. A meta that cannot be read is that of a round without losses.
func MetaOf(m *cluster.Manifest) RoundMeta {
	var meta RoundMeta
	if m != nil {
		_ = json.Unmarshal(m.Meta, &meta) // as said
	}
	return meta
}

// Status is how a worker is.
type Status struct {
	JobID      string `json:"job"`
	Generation uint64 `json:"generation"`
	PID        int    `json:"pid"`
	Final      uint64 `json:"final_round"`    // where training ends; lowered by a CommitRequest with Stop
	NextCommit uint64 `json:"earliest_round"` // the earliest round that a CommitRequest can still name
	// Loading is what the process has done so far, while it loads; nil once it trains.
	Loading *Loading `json:"loading,omitempty"`
	// Held says why shards of a commit cannot be written yet; empty: nothing is in the way. The worker tries again by itself.
	Held string `json:"held,omitempty"`
	// Progress is what the worker measures of its training; the daemon adds the rest. Its State is starting, running (also after the
	// final round, until the worker is told to end) or failed. Rates and fractions are of the last seconds.
	Progress api.JobStatus `json:"status"`
}

// Loading tells a process that loads slowly from one that hangs.
type Loading struct {
	ReadBytes  uint64  `json:"read_bytes"`
	CPUSeconds float64 `json:"cpu_s"`
}

// CommitRequest asks for a snapshot of round Round. With Stop, training ends there.
type CommitRequest struct {
	Generation uint64 `json:"generation"`
	Round      uint64 `json:"round"`
	Stop       bool   `json:"stop"`
}

// CommitResponse accepts or refuses, and says the earliest round that was possible then.
type CommitResponse struct {
	Accepted bool   `json:"accepted"`
	Earliest uint64 `json:"earliest_round"`
	Reason   string `json:"reason,omitempty"`
}

// EventKind names an Event.
type EventKind string

// The kinds of event.
const (
	Started   EventKind = "started"   // all stages are loaded, links are up, training begins
	Shard     EventKind = "shard"     // a snapshot of one stage is durable on this node
	Evaluated EventKind = "evaluated" // of the center at Round
	Finished  EventKind = "finished"  // the final round is reached; the worker waits for its commit, then for /abort
	FailedNow EventKind = "failed"    // Error says why; the process exits
	Note      EventKind = "note"      // Text, for the job's log
	Refused   EventKind = "refused"   // a connection From somewhere that is no link of this generation, and why (Error); for the audit log of the node
)

// Event is one line of the stream. Seq counts from 1 without gaps.
type Event struct {
	Seq        uint64     `json:"seq"`
	Time       time.Time  `json:"time"`
	Kind       EventKind  `json:"kind"`
	Generation uint64     `json:"generation"`
	Round      uint64     `json:"round,omitempty"`
	Shard      *ShardInfo `json:"shard,omitempty"`
	Loss       *float64   `json:"loss,omitempty"`
	Error      string     `json:"error,omitempty"`
	From       string     `json:"from,omitempty"`
	Permanent  bool       `json:"permanent,omitempty"` // of FailedNow: trying again would fail the same way (a NaN loss, bad data)
	// Obstacle, of FailedNow, is what keeps the job from going on for now: a full disk, a missing file. With neither this nor
	// Permanent, nobody knows whether the next worker would fail.
	Obstacle *obstacle.Obstacle `json:"obstacle,omitempty"`
	Text     string             `json:"text,omitempty"`
}

// ShardInfo describes a durable shard of one round.
type ShardInfo struct {
	Group   int            `json:"group,omitempty"` // of pipelines, whose part of the round it has beside the center
	Stage   int            `json:"stage"`
	Digest  string         `json:"digest"` // SHA-256, hexadecimal
	Bytes   int64          `json:"bytes"`
	Layers  [2]int         `json:"layers,omitzero"` // of the stage: the first one and the one after its last
	Cursors []shard.Cursor `json:"cursors"`
	Meta    RoundMeta      `json:"meta"`
	Frozen  FrozenInfo     `json:"frozen,omitzero"`
	// Squares are the squared distances of the stage's vectors, CenterSquare the squared length of the center's.
	Squares      []Distance `json:"squares,omitempty"`
	CenterSquare float64    `json:"center_square,omitempty"`
}

// FrozenInfo describes the file with the parameters of a stage that are not trained; zero: there are none.
type FrozenInfo struct {
	Digest shard.Digest `json:"digest"`
	Bytes  int64        `json:"bytes"`
}

// AssignmentPath is the assignment in a job's directory.
func AssignmentPath(dir string) string { return filepath.Join(dir, "assignment.json") }

// LockPath is the file that a worker holds a lock on for as long as it lives.
func LockPath(dir string) string { return filepath.Join(dir, "worker.lock") }

// SocketPath is where the worker listens.
func SocketPath(dir string) string { return filepath.Join(dir, "worker.sock") }

// ShardDir holds the shards of the job's committed rounds.
func ShardDir(dir string) string { return filepath.Join(dir, "shards") }

// QuarantineDir holds shards of the job that nobody expected: of rounds that were given up, damaged ones, and of commits that were not
// completed. Each directory in it is a time at which some were moved there.
func QuarantineDir(dir string) string { return filepath.Join(dir, "quarantine") }

// ModelDir holds what goes with the job's model when it is exported (export.WriteCompanions).
func ModelDir(dir string) string { return filepath.Join(dir, "model") }

// HistoryPath is where the worker keeps how training went (package history).
func HistoryPath(dir string) string { return filepath.Join(dir, "history") }

// LogPath is the worker's log, JSON lines.
func LogPath(dir string) string { return filepath.Join(dir, "worker.log") }
