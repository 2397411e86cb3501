package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/internal/unixhttp"
	"github.com/avgpipe/avgpipe/tuner"
)

// Client talks to a daemon over its unix socket, or to a cluster over the network. It is safe for concurrent use. Every call ends when its context does; calls
// that answer at once end after a minute at the latest.
type Client struct {
	unix   *unixhttp.Client
	remote *Remote // nil: a socket
}

// callTimeout bounds every call but the streams. A submit reads all the job's data files once.
const callTimeout = time.Minute

// maxLine bounds a line of a stream, such as an entry of a log: one line of output, escaped.
const maxLine = 16 << 20

// NewClient returns a client of the daemon on a socket. It dials on first use.
func NewClient(socket string) *Client { return &Client{unix: unixhttp.New(socket, 5*time.Second)} }

// OnSlow sets what is called of each request that has waited some seconds for an answer, and goes on waiting. It comes before requests.
func (c *Client) OnSlow(say func()) { c.unix.OnSlow = say }

// OnAge sets what is called of each answer that is old, because no node leads, and why none does. It comes before requests.
func (c *Client) OnAge(say func(age time.Duration, why string)) {
	c.unix.OnHeader = func(h http.Header) {
		if age, err := strconv.ParseFloat(h.Get(HeaderAge), 64); err == nil {
			say(time.Duration(age*float64(time.Second)), h.Get(HeaderLeaderless))
		}
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.unix.Close() }

// Submit submits a job file. A refused one is an *Error with Problems.
func (c *Client) Submit(ctx context.Context, r SubmitRequest) (SubmitResponse, error) {
	return call[SubmitResponse](ctx, c, http.MethodPost, PathJobs, r)
}

// Jobs returns all jobs, in the order of submission.
func (c *Client) Jobs(ctx context.Context) ([]JobStatus, error) {
	return call[[]JobStatus](ctx, c, http.MethodGet, PathJobs, nil)
}

// DryRun says what a job would be, and submits nothing.
func (c *Client) DryRun(ctx context.Context, r SubmitRequest) (DryRun, error) {
	return call[DryRun](ctx, c, http.MethodPost, PathDryRun, r)
}

// Job returns one job.
func (c *Client) Job(ctx context.Context, ref string) (JobStatus, error) {
	return call[JobStatus](ctx, c, http.MethodGet, PathJob(ref), nil)
}

// Explain says how a job is laid over its devices and why.
func (c *Client) Explain(ctx context.Context, ref string) (Explanation, error) {
	return call[Explanation](ctx, c, http.MethodGet, PathJob(ref, "explain"), nil)
}

// Audit says which samples stand behind a job's last committed round.
func (c *Client) Audit(ctx context.Context, ref string) (Accounting, error) {
	return call[Accounting](ctx, c, http.MethodGet, PathJob(ref, "audit"), nil)
}

// History returns how a job's training went.
func (c *Client) History(ctx context.Context, ref string, r HistoryRequest) (History, error) {
	query := url.Values{"from": {strconv.FormatUint(r.From, 10)}, "points": {strconv.Itoa(r.Points)}}
	return call[History](ctx, c, http.MethodGet, PathJob(ref, "history")+"?"+query.Encode(), nil)
}

// Cancel asks a job to commit and stop.
func (c *Client) Cancel(ctx context.Context, ref string) (JobStatus, error) {
	return call[JobStatus](ctx, c, http.MethodPost, PathJob(ref, "cancel"), nil)
}

// Resume restarts a job that failed, was cancelled or is waiting.
func (c *Client) Resume(ctx context.Context, ref string, r ResumeRequest) (JobStatus, error) {
	return call[JobStatus](ctx, c, http.MethodPost, PathJob(ref, "resume"), r)
}

// Remove forgets an ended job and deletes what the daemon keeps of it. It returns its last status once the job is gone.
func (c *Client) Remove(ctx context.Context, ref string) (JobStatus, error) {
	return call[JobStatus](ctx, c, http.MethodDelete, PathJob(ref), nil)
}

// Nodes returns the nodes of the cluster.
func (c *Client) Nodes(ctx context.Context) ([]NodeStatus, error) {
	return call[[]NodeStatus](ctx, c, http.MethodGet, PathNodes, nil)
}

// ClearGPU forgets what errors said of a GPU, named by its index or UUID, and returns the nodes.
func (c *Client) ClearGPU(ctx context.Context, ref string) ([]NodeStatus, error) {
	return call[[]NodeStatus](ctx, c, http.MethodPost, PathGPUs+"/"+url.PathEscape(ref)+"/clear", nil)
}

// Token returns a token that lets somebody in once.
func (c *Client) Token(ctx context.Context, r TokenRequest) (TokenResponse, error) {
	return call[TokenResponse](ctx, c, http.MethodPost, PathTokens, r)
}

// Drain has nothing new placed on a node, and returns the nodes.
func (c *Client) Drain(ctx context.Context, name string, r DrainRequest) ([]NodeStatus, error) {
	return call[[]NodeStatus](ctx, c, http.MethodPost, PathNode(name, "drain"), r)
}

// Undrain takes Drain back, and returns the nodes.
func (c *Client) Undrain(ctx context.Context, name string) ([]NodeStatus, error) {
	return call[[]NodeStatus](ctx, c, http.MethodPost, PathNode(name, "resume"), nil)
}

// RemoveNode ends the membership of a node, and returns the others.
func (c *Client) RemoveNode(ctx context.Context, name string, force bool) ([]NodeStatus, error) {
	path := PathNode(name)
	if force {
		path += "?force=1"
	}
	return call[[]NodeStatus](ctx, c, http.MethodDelete, path, nil)
}

// Backup copies a backup of the control state to w.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	return c.copy(ctx, PathBackup, "the backup", w)
}

// Restore brings back the jobs of a backup that the control state does not have.
func (c *Client) Restore(ctx context.Context, backup io.Reader) (answer RestoreResponse, err error) {
	body, err := c.unix.Send(ctx, http.MethodPost, PathRestore, ContentTypeBackup, backup)
	if err != nil {
		return answer, c.explain(err)
	}
	defer body.Close() //nolint:errcheck // only read
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return answer, fmt.Errorf("the backup was restored; read the answer of %s: %w", c.unix.Socket, err)
	}
	return answer, nil
}

// Renew returns another certificate of whoever asks with one.
func (c *Client) Renew(ctx context.Context, csr string) (RenewResponse, error) {
	return call[RenewResponse](ctx, c, http.MethodPost, PathCertificate, RenewRequest{csr})
}

// Version returns the daemon's version.
func (c *Client) Version(ctx context.Context) (VersionInfo, error) {
	return call[VersionInfo](ctx, c, http.MethodGet, PathVersion, nil)
}

// Watch calls each with every status of a job as it changes, until it has ended. It returns the last status; an error that
// wraps io.ErrUnexpectedEOF means that the daemon went away first. each must not block for long; nil is allowed.
func (c *Client) Watch(ctx context.Context, ref string, each func(JobStatus)) (JobStatus, error) {
	var last JobStatus
	err := unixhttp.Each(ctx, c.unix, http.MethodGet, PathJob(ref, "watch"), nil, maxLine, func(s JobStatus) error {
		last = s
		if each != nil {
			each(s)
		}
		return nil
	})
	if err == nil && !last.State.Ended() {
		err = &unixhttp.ReadError{Err: io.EOF}
	}
	return last, c.explain(err)
}

// Tune tunes a job file without submitting it, and calls each with every update but the last. A refused file is an *Error with
// Problems. The tuning ends when ctx does.
func (c *Client) Tune(ctx context.Context, r SubmitRequest, each func(TuneUpdate) error) (report *tuner.Report, err error) {
	err = unixhttp.Each(ctx, c.unix, http.MethodPost, PathTune, r, maxLine, func(u TuneUpdate) error {
		if report = u.Report; report != nil {
			return nil
		}
		if u.Error != "" {
			return &Error{Status: http.StatusUnprocessableEntity, Message: u.Error}
		}
		return each(u)
	})
	if err == nil && report == nil {
		err = &unixhttp.ReadError{Err: io.EOF}
	}
	return report, c.explain(err)
}

// Logs calls each with every entry of a job's log that is asked for, a JSON object; with Follow it goes on until the job has
// ended. An error that wraps io.ErrUnexpectedEOF means that the daemon went away first: ask again with After, the cursor of the
// last entry.
func (c *Client) Logs(ctx context.Context, ref string, r LogRequest, each func(entry []byte) error) error {
	return c.explain(unixhttp.Each(ctx, c.unix, http.MethodGet, PathJob(ref, "logs")+"?"+r.query().Encode(), nil, maxLine,
		func(entry json.RawMessage) error { return each(entry) }))
}

// Model copies a tar of the exported model of the job's last committed round to w.
func (c *Client) Model(ctx context.Context, ref string, w io.Writer) error {
	return c.copy(ctx, PathJob(ref, "model"), "the model of job "+ref, w)
}

// copy copies what is at a path to w.
func (c *Client) copy(ctx context.Context, path, what string, w io.Writer) error {
	body, err := c.unix.Do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return c.explain(err)
	}
	defer body.Close() //nolint:errcheck // only read
	if _, err := io.Copy(w, body); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("copy %s from %s: %w", what, c.unix.Socket, err)
	}
	return nil
}

// call sends body as JSON and decodes the answer.
func call[A any](ctx context.Context, c *Client, method, path string, body any) (answer A, err error) {
	err = c.unix.Call(ctx, callTimeout, method, path, body, &answer)
	if errors.Is(err, context.DeadlineExceeded) { // of callTimeout, or a shorter one of ctx
		err = &unixhttp.DialError{Err: err}
	}
	return answer, c.explain(err)
}

// explain turns an answer that is not 2xx into an *Error, a daemon that does not answer into a *ConnectError, and a stream that broke off
// into an io.ErrUnexpectedEOF.
func (c *Client) explain(err error) error {
	if _, broken := errors.AsType[*unixhttp.ReadError](err); broken && !errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("the daemon at %s closed the stream: %w", c.unix.Socket, io.ErrUnexpectedEOF)
	}
	if unreachable, ok := errors.AsType[*unixhttp.DialError](err); ok {
		return &ConnectError{Socket: c.unix.Socket, Err: unreachable.Err, Remote: c.remote != nil}
	}
	answer, ok := errors.AsType[*unixhttp.StatusError](err)
	if !ok {
		return err
	}
	e := &Error{Status: answer.Code}
	kind, _, _ := mime.ParseMediaType(answer.ContentType)
	if kind != "application/json" || json.Unmarshal(answer.Body, e) != nil || e.Message == "" {
		e.Message = answer.Error()
	}
	if e.Code == MethodNotAllowed { // this client knows the path: it is newer
		e.Message += "; the daemon is older than this program: restart it, as after every upgrade"
	}
	return e
}
