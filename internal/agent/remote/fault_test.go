package remote_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/remote"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// stub is an agent that does what a test says.
type stub struct {
	agent.Agent

	commit func(ctx context.Context) (control.CommitResponse, error)
	events func(ctx context.Context, each func(agent.Event)) error
	text   []byte
	logged atomic.Int32
}

func (s *stub) Commit(ctx context.Context, _ agent.Process, _ control.CommitRequest) (control.CommitResponse, error) {
	return s.commit(ctx)
}

func (s *stub) Events(ctx context.Context, _ agent.Process, each func(agent.Event)) error {
	return s.events(ctx, each)
}

func (s *stub) Log(string, zapcore.Level, string, ...zap.Field) { s.logged.Add(1) }

func (s *stub) Info(context.Context) (agent.Info, error) { return agent.Info{Node: "a"}, nil }

func (s *stub) Shards(string) agent.Shards { return stubShards{stub: s} }

// stubShards is a store of one shard.
type stubShards struct {
	agent.Shards

	stub *stub
}

func (s stubShards) Open(context.Context, shard.Digest) (io.ReadCloser, int64, error) {
	return io.NopCloser(bytes.NewReader(s.stub.text)), int64(len(s.stub.text)), nil
}

var (
	worker = agent.Process{Job: "1", Node: "a", Generation: 1, ID: process.ID{PID: 1000, Start: 7}}
	digest = shard.Digest(checkpoint.ObjectDigest([]byte("x")))
)

// frozen is a connection over which nothing comes or goes after so many bytes were read.
type frozen struct {
	net.Conn

	left int
	end  chan struct{}
}

func (f *frozen) Read(p []byte) (int, error) {
	if f.left <= 0 {
		<-f.end
		return 0, net.ErrClosed
	}
	n, err := f.Conn.Read(p[:min(len(p), f.left)])
	f.left -= n
	return n, err
}

func (f *frozen) Close() error {
	select {
	case <-f.end:
	default:
		close(f.end)
	}
	return f.Conn.Close()
}

func TestANodeThatFallsSilentIsUnreachable(t *testing.T) {
	for _, bytes := range []int{0, 10, 300} { // before the header of the answer, in it, and after it
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			m.wrap = func(c net.Conn) net.Conn { return &frozen{Conn: c, left: bytes, end: make(chan struct{})} }
			s := &stub{commit: func(ctx context.Context) (r control.CommitResponse, err error) {
				<-ctx.Done()
				return r, context.Cause(ctx)
			}}
			c := serve(t, s, m, remote.HandlerConfig{}, remote.Config{})
			began := time.Now()
			_, err := c.Commit(t.Context(), worker, control.CommitRequest{})
			if took := time.Since(began); !errors.Is(err, agent.ErrUnreachable) || obstacle.Of(err) != nil || took > 30*time.Second {
				t.Errorf("after %v: %v", took, err)
			}
			enough := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(enough) })
			if _, err := c.Commit(ctx, worker, control.CommitRequest{}); !errors.Is(err, enough) || errors.Is(err, agent.ErrUnreachable) {
				t.Errorf("whoever asked has gone: %v", err)
			}
		})
	}
}

func TestWorkMayTakeAsLongAsItDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{commit: func(context.Context) (control.CommitResponse, error) {
			time.Sleep(time.Hour)
			return control.CommitResponse{Accepted: true}, nil
		}}
		c := serve(t, s, newMemory(), remote.HandlerConfig{}, remote.Config{})
		if r, err := c.Commit(t.Context(), worker, control.CommitRequest{}); err != nil || !r.Accepted {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestEventsSurviveABreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		var asked atomic.Int32
		goOn := make(chan struct{})
		s := &stub{events: func(_ context.Context, each func(agent.Event)) error {
			if asked.Add(1) > 1 {
				return fmt.Errorf("again: %w", agent.ErrNoProcess)
			}
			each(agent.Event{Worker: &control.Event{Seq: 1, Kind: control.Started}})
			each(agent.Event{Status: &control.Status{Final: 3}})
			<-goOn
			each(agent.Event{Worker: &control.Event{Seq: 2, Kind: control.FailedNow}})
			each(agent.Event{Exit: &agent.Exit{Code: 1, Known: true}})
			return nil
		}}
		c := serve(t, s, m, remote.HandlerConfig{}, remote.Config{})
		err := c.Events(t.Context(), worker, func(e agent.Event) {
			if e.Status != nil {
				m.cut()
			}
		})
		if !errors.Is(err, agent.ErrUnreachable) {
			t.Fatalf("the connection broke: %v", err)
		}
		close(goOn) // while nobody looks
		synctest.Wait()
		var seen []string
		err = c.Events(t.Context(), worker, func(e agent.Event) {
			switch {
			case e.Process != worker:
				t.Errorf("an event of %v", e.Process)
			case e.Worker != nil:
				seen = append(seen, string(e.Worker.Kind))
			case e.Status != nil:
				seen = append(seen, "status")
			case e.Exit != nil:
				seen = append(seen, fmt.Sprint("exit ", e.Exit.Code))
			}
		})
		if got := strings.Join(seen, ", "); err != nil || got != "started, status, failed, exit 1" {
			t.Errorf("seen after the break: %s, %v", got, err)
		}
		if err := c.Events(t.Context(), worker, nil); !errors.Is(err, agent.ErrNoProcess) {
			t.Errorf("once the exit was taken: %v", err)
		}
	})
}

func TestAFormerLeaderIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var newest atomic.Uint64
		newest.Store(3)
		allow := func(node string, term uint64) error {
			if node != "leader" || term < newest.Load() {
				return fmt.Errorf("term %d began", newest.Load())
			}
			return nil
		}
		s := &stub{commit: func(ctx context.Context) (r control.CommitResponse, err error) {
			<-ctx.Done()
			return r, context.Cause(ctx)
		}}
		c := serve(t, s, newMemory(), remote.HandlerConfig{Allow: allow}, remote.Config{Term: func() uint64 { return 3 }})
		time.AfterFunc(time.Minute, func() { newest.Store(4) })
		for range 2 { // in the middle of an answer, and before one
			if _, err := c.Commit(t.Context(), worker, control.CommitRequest{}); !errors.Is(err, remote.ErrRefused) {
				t.Errorf("%v", err)
			}
		}
		if _, err := c.Info(t.Context()); err != nil {
			t.Errorf("it may still read: %v", err)
		}
	})
}

func TestErrorsKeepWhatCallersTestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var next error
		s := &stub{commit: func(context.Context) (r control.CommitResponse, err error) { return r, next }}
		c := serve(t, s, newMemory(), remote.HandlerConfig{}, remote.Config{})
		ask := func(err error) error {
			next = fmt.Errorf("commit: %w", err)
			_, got := c.Commit(t.Context(), worker, control.CommitRequest{})
			return got
		}
		for _, want := range []error{agent.ErrNoProcess, fs.ErrNotExist, agent.ErrUnreachable} {
			if err := ask(want); !errors.Is(err, want) || !strings.Contains(err.Error(), "node a") {
				t.Errorf("%v is lost in %v", want, err)
			}
		}
		if o := obstacle.Of(ask(&checkpoint.SpaceError{Dir: "/x", Needed: 9, Err: syscall.ENOSPC})); o == nil || o.Kind != obstacle.Space || o.Path != "/x" || o.Bytes != 9 {
			t.Errorf("a full disk became %+v", o)
		}
		if o := obstacle.Of(ask(&fs.PathError{Op: "open", Path: "/x", Err: syscall.EIO})); o == nil || o.Kind != obstacle.Device {
			t.Errorf("a broken disk became %+v", o)
		}
		d, ok := errors.AsType[*shard.DamagedError](ask(&shard.DamagedError{Path: "p", Expected: digest, Problem: errors.New("short")}))
		if !ok || d.Path != "p" || d.Expected != digest || d.Problem == nil {
			t.Errorf("damage became %+v", d)
		}
		if e, ok := errors.AsType[*api.Error](ask(api.Errorf(http.StatusConflict, "no"))); !ok || e.Status != http.StatusConflict {
			t.Errorf("%+v", e)
		}
	})
}

func TestAShardThatBreaksOffIsNotWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		s := &stub{text: bytes.Repeat([]byte("a"), 1<<20)}
		c := serve(t, s, m, remote.HandlerConfig{}, remote.Config{})
		r, size, err := c.Shards("1").Open(t.Context(), digest)
		if err != nil || size != 1<<20 {
			t.Fatal(size, err)
		}
		if text, err := io.ReadAll(r); err != nil || !bytes.Equal(text, s.text) {
			t.Errorf("%d bytes, %v", len(text), err)
		}
		_ = r.Close()
		m.set(func() {
			m.wrap = func(c net.Conn) net.Conn { return &frozen{Conn: c, left: 5000, end: make(chan struct{})} }
		})
		m.cut()
		for _, breaks := range []func(){func() {}, m.cut} { // it freezes, and it breaks
			if r, _, err = c.Shards("1").Open(t.Context(), digest); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(time.Second, breaks)
			if n, err := io.Copy(io.Discard, r); !errors.Is(err, agent.ErrUnreachable) || n >= size {
				t.Errorf("%d bytes, %v", n, err)
			}
			_ = r.Close()
		}
	})
}

func TestLinesOfLogsWaitAndAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.fails = true
		s := &stub{}
		c := serve(t, s, m, remote.HandlerConfig{}, remote.Config{})
		const lines = 5000
		for range lines {
			c.Log("1", zap.InfoLevel, "x", zap.Error(errors.New("e"))) // it does not block
		}
		time.Sleep(time.Minute)
		m.set(func() { m.fails = false })
		time.Sleep(time.Minute)
		synctest.Wait()
		if dropped, logged := c.Dropped(), uint64(s.logged.Load()); dropped == 0 || logged == 0 || dropped+logged != lines { //nolint:gosec // a count
			t.Errorf("%d lines were dropped and %d written of %d", dropped, logged, lines)
		}
	})
}

func TestTheWayToANodeIsMeasured(t *testing.T) {
	c := serve(t, &stub{}, newMemory(), remote.HandlerConfig{}, remote.Config{})
	if l, err := c.Measure(t.Context()); err != nil || l.RTT <= 0 || l.BytesPerSecond <= 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestQuestionsWithoutACertificateAreRefused(t *testing.T) {
	h := remote.NewHandler(&stub{}, remote.HandlerConfig{Node: "a"})
	defer h.Close()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/agent/v1/info", strings.NewReader("{}")))
	if w.Code != http.StatusForbidden {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

// TestQuestionsOfALaterProgramAreRefusedAsObstacles: nothing of them is done, and the job that needs it waits.
func TestQuestionsOfALaterProgramAreRefusedAsObstacles(t *testing.T) {
	h := remote.NewHandler(refuser{t: t}, remote.HandlerConfig{Node: "a", Caller: func(*http.Request) (string, error) { return "b", nil }})
	defer h.Close()
	for body, of := range map[string]string{
		`{"job":"1","later":true}`:                            "/agent/v1/delete",
		`{"assignment":{"job":"1","spec":{"version":1000}}}`:  "/agent/v1/start",
		`{"assignment":{"job":"1","stages":[{"later":"b"}]}}`: "/agent/v1/start",
		`{}`: "/agent/v1/later",
	} {
		r := httptest.NewRequest(http.MethodPost, of, strings.NewReader(body))
		r.Header.Set("Avgpipe-Term", "1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var f struct {
			Text     string
			Obstacle *obstacle.Obstacle
		}
		if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil || f.Obstacle == nil || f.Obstacle.Kind != obstacle.Node || !strings.Contains(f.Text, "older avgpiped than the one that asks: update it") {
			t.Errorf("%s %s: %d %s", of, body, w.Code, w.Body)
		}
	}
}

// FuzzQuestion asks a handler anything: no question that it should refuse reaches the agent.
func FuzzQuestion(f *testing.F) {
	asked := []string{"commit", "delete", "start", "open", "companion", "fetch", "nothing"}
	for _, body := range []string{
		`{}`, `{"job":"../1"}`, `{"job":"01","digest":"x"}`, `{"process":{"Node":"b","ID":{"PID":5}}}`, `{"process":{"Node":"a","ID":{"PID":1}}}`, `{"unknown":1}`,
		`{} {}`, `[`, `{"job":"1","name":"../x"}`, `{"record":{"id":"/"}}`, `{"job":"1","bytes":-1}`, ``, `null`,
	} {
		for _, method := range asked {
			f.Add(method, body)
		}
	}
	f.Fuzz(func(t *testing.T, method, body string) {
		if !slices.Contains(asked, method) { // the agent has no others
			return
		}
		h := remote.NewHandler(refuser{t: t, body: body}, remote.HandlerConfig{Node: "a", Caller: func(*http.Request) (string, error) { return "b", nil }})
		defer h.Close()
		r := httptest.NewRequest(http.MethodPost, "/agent/v1/"+method, strings.NewReader(body))
		r.Header.Set("Avgpipe-Term", "1")
		h.ServeHTTP(httptest.NewRecorder(), r)
	})
}

// refuser is an agent that fails a test which lets a bad name through.
type refuser struct {
	agent.Agent

	t    *testing.T
	body string
}

func (r refuser) Commit(_ context.Context, p agent.Process, _ control.CommitRequest) (c control.CommitResponse, err error) {
	if p.Node != "a" || p.ID.PID <= 1 {
		r.t.Errorf("asked about %+v by %q", p, r.body)
	}
	return c, agent.ErrNoProcess
}

func (r refuser) job(name string) error {
	if _, err := agent.ParseJob(name); err != nil {
		r.t.Errorf("asked about job %q by %q", name, r.body)
	}
	return fs.ErrNotExist
}

func (r refuser) Delete(_ context.Context, job string) error { return r.job(job) }

func (r refuser) Start(_ context.Context, a control.Assignment) (p agent.Process, err error) {
	return p, r.job(a.JobID)
}

func (r refuser) Companion(_ context.Context, job, name string) ([]byte, error) {
	if strings.Contains(name, "/") {
		r.t.Errorf("asked for the file %q", name)
	}
	return nil, r.job(job)
}
func (r refuser) Shards(job string) agent.Shards { return refusedShards{refuser: r, job: job} }

type refusedShards struct {
	agent.Shards

	refuser refuser
	job     string
}

func (r refusedShards) Open(_ context.Context, d shard.Digest) (io.ReadCloser, int64, error) {
	if _, err := shard.ParseDigest(string(d)); err != nil {
		r.refuser.t.Errorf("asked for shard %q", d)
	}
	return nil, 0, r.refuser.job(r.job)
}

func (r refusedShards) Fetch(_ context.Context, d shard.Digest, bytes int64, _ []string) error {
	if bytes < 0 {
		r.refuser.t.Errorf("asked for %d bytes of %s", bytes, d)
	}
	return r.refuser.job(r.job)
}

// TestRefusedQuestionsAreTold: by whom, and why.
func TestRefusedQuestionsAreTold(t *testing.T) {
	var told []string
	h := remote.NewHandler(&stub{}, remote.HandlerConfig{
		Node: "a", Caller: func(*http.Request) (string, error) { return "b", nil },
		Refused: func(_ *http.Request, node string, status int, err error) {
			told = append(told, fmt.Sprintf("%s %d %v", node, status, err))
		},
	})
	defer h.Close()
	for _, body := range []string{"{}", "{", `{"job":"` + strings.Repeat("1", 33<<20) + `"}`} {
		r := httptest.NewRequest(http.MethodPost, "/agent/v1/delete", strings.NewReader(body))
		r.Header.Set("Avgpipe-Term", "1")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	want := []string{`b 400 delete: "" is no job`, "b 400 delete: unexpected EOF", "b 413 delete: "}
	if !slices.EqualFunc(told, want, strings.HasPrefix) {
		t.Errorf("%.200q; want %q", told, want)
	}
}
