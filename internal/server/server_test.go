package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/tuner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a backend in memory: one job, whose status a test sets.
type fake struct {
	mu         sync.Mutex
	job        api.JobStatus
	log        bytes.Buffer
	lateLog    string // is written once the log of a job that has ended was read
	logRequest api.LogRequest
	peer       server.Peer
	failure    error // of every method
	model      []byte
	modelErr   error // after model was written
	tuneErr    string
}

func (f *fake) set(change func(*fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fake) Submit(_ context.Context, r api.SubmitRequest, p server.Peer) (api.SubmitResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peer = p
	return api.SubmitResponse{ID: "1", Warnings: []string{r.File}}, f.failure
}

func (f *fake) Jobs(context.Context) ([]api.JobStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.job.ID == "" {
		return nil, f.failure
	}
	return []api.JobStatus{f.job}, f.failure
}

func (f *fake) Job(_ context.Context, ref string) (api.JobStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure == nil && ref != f.job.ID && ref != f.job.Name {
		return api.JobStatus{}, api.Errorf(http.StatusNotFound, "no job %q", ref)
	}
	return f.job, f.failure
}

func (f *fake) Explain(ctx context.Context, ref string) (api.Explanation, error) {
	s, err := f.Job(ctx, ref)
	return api.Explanation{ID: s.ID, Why: []string{"because"}}, err
}

func (f *fake) DryRun(_ context.Context, r api.SubmitRequest, _ server.Peer) (api.DryRun, error) {
	return api.DryRun{Name: r.File}, f.failure
}

func (f *fake) Tune(_ context.Context, r api.SubmitRequest, p server.Peer, each func(api.TuneUpdate) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peer = p
	if f.failure != nil {
		return f.failure
	}
	if err := each(api.TuneUpdate{Progress: &api.TuneProgress{Done: 1, Total: 2, Text: r.File}}); err != nil {
		return err
	}
	if f.tuneErr != "" {
		return each(api.TuneUpdate{Error: f.tuneErr})
	}
	return each(api.TuneUpdate{Report: &tuner.Report{Version: tuner.ReportVersion, Considered: 7}})
}

func (f *fake) Cancel(ctx context.Context, ref string, _ server.Peer) (api.JobStatus, error) {
	f.set(func(f *fake) { f.job.State = api.Cancelled })
	return f.Job(ctx, ref)
}

func (f *fake) Resume(ctx context.Context, ref string, r api.ResumeRequest, _ server.Peer) (api.JobStatus, error) {
	f.set(func(f *fake) { f.job.State, f.job.Round = api.Queued, r.FromRound })
	return f.Job(ctx, ref)
}

// Log reads what is in the log now, and goes on at the next read, as a file does.
func (f *fake) Log(_ context.Context, _ string, r api.LogRequest) (server.LogReader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logRequest = r
	return (*fakeLog)(f), f.failure
}

// fakeLog is the log of a fake: every line is an entry.
type fakeLog fake

func (f *fakeLog) Next(bool) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	line, err := f.log.ReadBytes('\n')
	if err != nil && f.job.State.Ended() {
		f.log.WriteString(f.lateLog)
		f.lateLog = ""
	}
	return bytes.TrimSuffix(line, []byte("\n")), err
}

func (f *fakeLog) Close() error { return nil }

func (f *fake) History(ctx context.Context, ref string, r api.HistoryRequest) (api.History, error) {
	s, err := f.Job(ctx, ref)
	return api.History{
		ID: s.ID, Points: make([]api.HistoryPoint, r.Points), Evaluations: []api.HistoryEvaluation{}, Commits: []api.HistoryMark{},
		Starts: []api.HistoryMark{}, Damaged: int(r.From),
	}, err
}

func (f *fake) Model(_ context.Context, _ string, w io.Writer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return f.failure
	}
	if _, err := w.Write(f.model); err != nil {
		return err
	}
	return f.modelErr
}

func (f *fake) Nodes(context.Context) ([]api.NodeStatus, error) {
	return []api.NodeStatus{{ID: "n"}}, f.failure
}

func (f *fake) Ready(context.Context) []server.Check {
	f.mu.Lock()
	defer f.mu.Unlock()
	return []server.Check{{Name: "raft"}, {Name: "coordinator", Err: f.failure}}
}

func (f *fake) NodeMetrics() server.NodeMetrics {
	return server.NodeMetrics{
		Cores: 8, CoresFree: 3, StateFree: 1 << 30, StateSize: 1 << 40, Leader: true, RaftApplied: 12, LastTick: time.Unix(1e9, 0),
		Ended: map[api.State]uint64{api.Failed: 2}, Commits: 7, WorkerDeaths: 5,
	}
}

func (f *fake) Version() api.VersionInfo { return api.VersionInfo{Version: "v"} }

// start serves a backend and returns a client and the socket. stop ends the server in order; the test's end does so too.
func start(t *testing.T, f server.Backend) (client *api.Client, socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(envtest.ShortDir(t), "api.sock")
	l, err := server.Listen(t.Context(), socket, "no-such-group")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, server.Config{Listener: l, Backend: f, Log: zap.NewNop()}) }()
	client = api.NewClient(socket)
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		client.Close()
	})
	t.Cleanup(stop)
	return client, socket, stop
}

func TestCalls(t *testing.T) {
	f := &fake{}
	c, _, _ := start(t, f)
	if jobs, err := c.Jobs(t.Context()); err != nil || jobs == nil || len(jobs) != 0 {
		t.Errorf("no jobs: %v, %v; want an empty list", jobs, err)
	}
	answer, err := c.Submit(t.Context(), api.SubmitRequest{File: "job.yaml"})
	if err != nil || answer.ID != "1" || answer.Warnings[0] != "job.yaml" {
		t.Errorf("submit: %+v, %v", answer, err)
	}
	if int(f.peer.UID) != os.Geteuid() || len(f.peer.GIDs) == 0 || int(f.peer.GIDs[0]) != os.Getegid() {
		t.Errorf("the peer is %+v, want this process: %d, %d", f.peer, os.Geteuid(), os.Getegid())
	}
	f.set(func(f *fake) { f.job = api.JobStatus{ID: "1", Name: "a b/c"} })
	if s, err := c.Job(t.Context(), "a b/c"); err != nil || s.ID != "1" {
		t.Errorf("a name that a path must escape: %+v, %v", s, err)
	}
	if s, err := c.Cancel(t.Context(), "1"); err != nil || s.State != api.Cancelled {
		t.Errorf("cancel: %+v, %v", s, err)
	}
	if s, err := c.Resume(t.Context(), "1", api.ResumeRequest{FromRound: 7}); err != nil || s.State != api.Queued || s.Round != 7 {
		t.Errorf("resume: %+v, %v", s, err)
	}
	if e, err := c.Explain(t.Context(), "1"); err != nil || e.ID != "1" || len(e.Why) != 1 {
		t.Errorf("explain: %+v, %v", e, err)
	}
	if h, err := c.History(t.Context(), "1", api.HistoryRequest{From: 3, Points: 2}); err != nil || h.ID != "1" || h.Damaged != 3 || len(h.Points) != 2 {
		t.Errorf("history: %+v, %v", h, err)
	}
	if n, err := c.Nodes(t.Context()); err != nil || len(n) != 1 {
		t.Errorf("nodes: %+v, %v", n, err)
	}
	if v, err := c.Version(t.Context()); err != nil || v.Version != "v" {
		t.Errorf("version: %+v, %v", v, err)
	}
}

func TestErrorsKeepTheirForm(t *testing.T) {
	f := &fake{}
	c, _, _ := start(t, f)
	refused := &api.Error{Status: http.StatusUnprocessableEntity, Message: "refused", Problems: strictyaml.Problems{{File: "f", Line: 3, Key: "k"}}}
	f.set(func(f *fake) { f.failure = refused })
	_, err := c.Submit(t.Context(), api.SubmitRequest{})
	got, ok := errors.AsType[*api.Error](err)
	if !ok || got.Status != refused.Status || got.Code != api.RefusedFile || len(got.Problems) != 1 ||
		got.Problems[0] != refused.Problems[0] {
		t.Errorf("a refusal arrives as %v", err)
	}
	f.set(func(f *fake) { f.failure = errors.New("disk on fire") })
	_, err = c.Job(t.Context(), "1")
	if got, ok := errors.AsType[*api.Error](err); !ok || got.Status != http.StatusInternalServerError || got.Message != "disk on fire" {
		t.Errorf("a failure arrives as %v", err)
	}
	for name, call := range map[string]func() error{
		"watch": func() error { _, err := c.Watch(t.Context(), "1", nil); return err },
		"logs":  func() error { return c.Logs(t.Context(), "1", api.LogRequest{}, func([]byte) error { return nil }) },
		"model": func() error { return c.Model(t.Context(), "1", io.Discard) },
	} {
		if _, ok := errors.AsType[*api.Error](call()); !ok {
			t.Errorf("%s: a failure before the first byte arrives as %v", name, call())
		}
	}
	_, err = api.NewClient("/nonexistent.sock").Version(t.Context())
	if _, ok := errors.AsType[*api.ConnectError](err); !ok {
		t.Errorf("no server: %v", err)
	}
}

func TestWatchEndsWithTheJob(t *testing.T) {
	f := &fake{job: api.JobStatus{ID: "1", State: api.Running}}
	c, _, _ := start(t, f)
	var seen []api.State
	last, err := c.Watch(t.Context(), "1", func(s api.JobStatus) {
		seen = append(seen, s.State)
		f.set(func(f *fake) { f.job.State = api.Done })
	})
	if err != nil || last.State != api.Done || len(seen) != 2 || seen[0] != api.Running {
		t.Errorf("watched %v, %v", seen, err)
	}
}

func TestTune(t *testing.T) {
	f := &fake{}
	c, _, _ := start(t, f)
	var seen []string
	note := func(u api.TuneUpdate) error {
		seen = append(seen, u.Progress.Text)
		return nil
	}
	report, err := c.Tune(t.Context(), api.SubmitRequest{File: "job.yaml"}, note)
	if err != nil || report.Considered != 7 || len(seen) != 1 || seen[0] != "job.yaml" || int(f.peer.UID) != os.Geteuid() {
		t.Errorf("tune: %+v after %v by %+v, %v", report, seen, f.peer, err)
	}
	f.set(func(f *fake) { f.tuneErr = "no candidate fits" })
	_, err = c.Tune(t.Context(), api.SubmitRequest{}, note)
	if got, ok := errors.AsType[*api.Error](err); !ok || got.Message != "no candidate fits" {
		t.Errorf("a tuning that cannot choose arrives as %v", err)
	}
	stop := errors.New("enough")
	if _, err := c.Tune(t.Context(), api.SubmitRequest{}, func(api.TuneUpdate) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a reader that has enough gets %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := c.Tune(ctx, api.SubmitRequest{}, func(api.TuneUpdate) error { cancel(); return ctx.Err() }); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled tuning: %v", err)
	}
	f.set(func(f *fake) { f.failure = api.Errorf(http.StatusUnprocessableEntity, "refused") })
	if _, err = c.Tune(t.Context(), api.SubmitRequest{}, note); err == nil || err.Error() != "refused" {
		t.Errorf("a refused file arrives as %v", err)
	}
}

func TestWatchTellsAnEndFromABreak(t *testing.T) {
	f := &fake{job: api.JobStatus{ID: "1", State: api.Running}}
	c, _, stop := start(t, f)
	var once sync.Once
	_, err := c.Watch(t.Context(), "1", func(api.JobStatus) { once.Do(func() { go stop() }) })
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the server went away: %v; want %v", err, io.ErrUnexpectedEOF)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Watch(ctx, "1", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled watch: %v", err)
	}
}

func TestLogsFollowUntilTheJobEnds(t *testing.T) {
	f := &fake{job: api.JobStatus{ID: "1", State: api.Running}}
	c, _, stop := start(t, f)
	read := func(r api.LogRequest, each func(line string)) error {
		return c.Logs(t.Context(), "1", r, func(entry []byte) error { each(string(entry)); return nil })
	}
	f.log.WriteString("0\n1\n2\n")
	var got []string
	asked := api.LogRequest{Tail: 2, Level: "warn", Since: time.Unix(7, 8).UTC(), After: "1-2"}
	if err := read(asked, func(line string) { got = append(got, line) }); err != nil || fmt.Sprint(got) != "[1 2]" {
		t.Errorf("the last 2 lines: %q, %v", got, err)
	}
	if f.logRequest != asked {
		t.Errorf("asked for %+v, the backend got %+v", asked, f.logRequest)
	}
	f.log.WriteString("3\n4\n")
	got = nil
	err := read(api.LogRequest{Follow: true, Tail: 1}, func(line string) {
		got = append(got, line)
		if line == "4" {
			f.set(func(f *fake) {
				f.log.WriteString("5\n")
				f.job.State, f.lateLog = api.Done, "6\n"
			})
		}
	})
	if err != nil || fmt.Sprint(got) != "[4 5 6]" {
		t.Errorf("followed %q, %v", got, err)
	}
	f.set(func(f *fake) { f.job.State, f.failure = api.Running, nil })
	f.log.WriteString("7\n")
	var once sync.Once
	if err := read(api.LogRequest{Follow: true}, func(string) { once.Do(func() { go stop() }) }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the server went away: %v; want %v", err, io.ErrUnexpectedEOF)
	}
}

func TestHalfAModelIsAnError(t *testing.T) {
	f := &fake{model: bytes.Repeat([]byte("x"), 100_000), job: api.JobStatus{ID: "1"}}
	c, _, _ := start(t, f)
	var out bytes.Buffer
	if err := c.Model(t.Context(), "1", &out); err != nil || !bytes.Equal(out.Bytes(), f.model) {
		t.Errorf("%d bytes, %v; want %d", out.Len(), err, len(f.model))
	}
	f.set(func(f *fake) { f.modelErr = errors.New("disk on fire") })
	if err := c.Model(t.Context(), "1", io.Discard); err == nil {
		t.Error("a model that broke off was taken for a whole one")
	}
}

func TestMetrics(t *testing.T) {
	loss, lag := 2.5, 0.03
	f := &fake{job: api.JobStatus{
		ID: "7", Name: "m", State: api.Running, Step: 3, Loss: &loss, CriticalBatch: &api.CriticalBatch{}, StageStatus: []api.StageStatus{{Stage: 1, Busy: 0.75, Lag: &lag}},
	}}
	text := scrape(t, f)
	for _, line := range []string{
		`avgpipe_job_state{job_id="7",name="m",state="running"} 1`,
		`avgpipe_job_step{job_id="7",name="m"} 3`,
		`avgpipe_job_loss_nats{job_id="7",name="m"} 2.5`,
		`avgpipe_stage_time_ratio{group="0",job_id="7",kind="busy",name="m",stage="1"} 0.75`,
		`avgpipe_stage_lag_ratio{group="0",job_id="7",name="m",stage="1"} 0.03`,
		"go_goroutines ",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no %s", line)
		}
	}
	for _, name := range []string{"eval_loss_nats", "batch_seconds", "drift_ratio", "tuning_ratio", "critical_batch_samples"} {
		if strings.Contains(text, "avgpipe_job_"+name+"{") {
			t.Errorf("%s is not known and has a value", name)
		}
	}
	seconds := 1.5
	f.set(func(f *fake) {
		f.job.BatchS, f.job.PredictedBatchS, f.job.Drift = &seconds, &seconds, &api.Drift{Relative: 0.25}
		f.job.Tuning, f.job.CriticalBatch = &api.TuneProgress{Done: 3, Total: 4}, &api.CriticalBatch{Samples: 46}
	})
	text = scrape(t, f)
	for _, line := range []string{"batch_seconds%s 1.5", "predicted_batch_seconds%s 1.5", "drift_ratio%s 0.25", "tuning_ratio%s 0.75", "critical_batch_samples%s 46"} {
		if want := "avgpipe_job_" + fmt.Sprintf(line, `{job_id="7",name="m"}`); !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
}

func scrape(t *testing.T, f *fake) string {
	t.Helper()
	w := &recorder{header: http.Header{}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x"+api.PathMetrics, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	server.Handler(server.Config{Backend: f, Log: zap.NewNop()}).ServeHTTP(w, r)
	return w.String()
}

// recorder is a response in memory.
type recorder struct {
	bytes.Buffer
	header http.Header
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(int)     {}

func TestSockets(t *testing.T) {
	dir := envtest.ShortDir(t)
	path := filepath.Join(dir, "run", "api.sock")
	l, err := server.Listen(t.Context(), path, "no-such-group")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v; want 0660", info.Mode(), err)
	}
	if _, err := server.Listen(t.Context(), path, ""); err == nil || !strings.Contains(err.Error(), "another daemon answers") {
		t.Errorf("a second server on the socket: %v", err)
	}
	unix, ok := l.(*net.UnixListener)
	if !ok {
		t.Fatalf("a %T", l)
	}
	unix.SetUnlinkOnClose(false) // as if the process had been killed
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = server.Listen(t.Context(), path, ""); err != nil {
		t.Fatalf("a leftover was not replaced: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Listen(t.Context(), file, ""); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if _, err := server.Listen(t.Context(), "/"+strings.Repeat("x", 200), ""); err == nil || !strings.Contains(err.Error(), "200") && !strings.Contains(err.Error(), "201") {
		t.Errorf("a path that is too long: %v", err)
	}
}

// A client that stops reading does not hold the server up when it ends.
func TestServerEndsWithStreamsOpen(t *testing.T) {
	f := &fake{job: api.JobStatus{ID: "1", State: api.Running}}
	_, socket, stop := start(t, f)
	var dialer net.Dialer
	c, err := dialer.DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /v1/jobs/1/watch HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		stop()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Minute):
		t.Fatal("the server does not end")
	}
}
