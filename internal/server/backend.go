package server

import (
	"context"
	"io"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// Backend answers the API's questions. Its methods are called concurrently and return when ctx ends. An error that is an
// *api.Error goes to the client as it is; any other one becomes a 500 and is logged.
type Backend interface {
	// Submit checks a job file and queues the job. peer is who asks.
	Submit(ctx context.Context, r api.SubmitRequest, peer Peer) (api.SubmitResponse, error)
	// Jobs returns every job, in the order of submission.
	Jobs(ctx context.Context) ([]api.JobStatus, error)
	// Job returns the job with an id, or the only one with a name.
	Job(ctx context.Context, ref string) (api.JobStatus, error)
	// Explain says how a job is laid over its devices and why.
	Explain(ctx context.Context, ref string) (api.Explanation, error)
	// Audit says which samples stand behind the job's last committed round.
	Audit(ctx context.Context, ref string) (api.Accounting, error)
	// Tune tunes a job file and submits nothing. It calls each with every update; an error of each ends it. An error before the
	// first update reaches the client as an answer.
	Tune(ctx context.Context, r api.SubmitRequest, peer Peer, each func(api.TuneUpdate) error) error
	// DryRun checks a job file and says what the job would be. It starts and stores nothing.
	DryRun(ctx context.Context, r api.SubmitRequest, peer Peer) (api.DryRun, error)
	// Cancel asks a job to commit and stop, for somebody. It returns before it has.
	Cancel(ctx context.Context, ref string, by Peer) (api.JobStatus, error)
	// Resume restarts a job that failed, was cancelled or is waiting, for somebody.
	Resume(ctx context.Context, ref string, r api.ResumeRequest, by Peer) (api.JobStatus, error)
	// Remove forgets an ended job and deletes what is kept of it. It returns its last status once the job is gone.
	Remove(ctx context.Context, ref string, by Peer) (api.JobStatus, error)
	// Log opens a job's log. The caller closes it. Tail and Follow of the request are the caller's business.
	Log(ctx context.Context, ref string, r api.LogRequest) (LogReader, error)
	// History returns how a job's training went.
	History(ctx context.Context, ref string, r api.HistoryRequest) (api.History, error)
	// Model writes a tar of the exported model of the job's last committed round. An error before the first byte reaches
	// the client as an answer, a later one as a broken connection.
	Model(ctx context.Context, ref string, w io.Writer) error
	// Nodes returns the nodes of the cluster.
	Nodes(ctx context.Context) ([]api.NodeStatus, error)
	// ClearGPU forgets what errors said of a GPU, named by its index or UUID, for somebody, and returns the nodes.
	ClearGPU(ctx context.Context, ref string, by Peer) ([]api.NodeStatus, error)
	Members
	// Ready says whether the daemon can do its work: each condition, and what is wrong with it.
	Ready(ctx context.Context) []Check
	// NodeMetrics returns what the node says of itself.
	NodeMetrics() NodeMetrics
	// Version returns what runs here.
	Version() api.VersionInfo
}

// Members are the nodes of a cluster of several, and what they agree on. A node that is alone refuses all of it but Backup and Restore.
type Members interface {
	// CreateToken returns the text of a token with which somebody is let in once, within a time.
	CreateToken(ctx context.Context, role, user string, uid uint32, valid time.Duration, by Peer) (string, error)
	// Drain has nothing new placed on a node, and Undrain takes that back. They return the nodes.
	Drain(ctx context.Context, name, reason string, by Peer) ([]api.NodeStatus, error)
	Undrain(ctx context.Context, name string, by Peer) ([]api.NodeStatus, error)
	// RemoveNode ends the membership of a node: with force that of one that is alive, works on jobs, or alone has a job's shards, too. It returns the others.
	RemoveNode(ctx context.Context, name string, force bool, by Peer) ([]api.NodeStatus, error)
	// Backup writes the control state. An error before the first byte reaches the client as an answer, a later one as a broken connection.
	Backup(ctx context.Context, w io.Writer) error
	// Restore brings back the jobs of a backup that are not there, for somebody.
	Restore(ctx context.Context, backup io.Reader, by Peer) (api.RestoreResponse, error)
	// RenewClient makes another certificate for whoever asks with one. csr is DER.
	RenewClient(ctx context.Context, csr []byte, by Peer) (api.RenewResponse, error)
}

// LogReader reads the entries of a log in order. It is used from one goroutine.
type LogReader interface {
	// Next returns the next entry that was asked for, a JSON object with a cursor, or io.EOF while there is none. ended says that
	// nothing more will be written, so that half a line at the end is an entry.
	Next(ended bool) ([]byte, error)
	Close() error
}
