package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// HandlerConfig configures a Handler.
type HandlerConfig struct {
	Node string // this one
	// Caller names the node that asks. Nil: the common name of its certificate; without one it is refused.
	Caller func(r *http.Request) (node string, err error)
	// Allow returns nil when a node may decide what happens here: it leads in this term, as far as this node knows. It is called
	// before each question but those that only read, and every second while one is answered. Nil: every node may.
	Allow func(node string, term uint64) error
	// Refused is told of a question that no agent was asked, by whom ("" where nobody knows), and why. It is called concurrently and does not block. Nil:
	// nobody is.
	Refused func(r *http.Request, node string, status int, err error)
	// Between is how much time lies between two statuses of a worker that say nothing new but how far it is. Who asks gets those of all workers. Nil: every
	// status is told.
	Between func() time.Duration
	// Alive is how often a line is sent while the agent works. Default 1 s.
	Alive time.Duration
	// Patience bounds the reading of a question, and every write to one who does not read. Default 30 s.
	Patience time.Duration
}

func (c HandlerConfig) withDefaults() HandlerConfig {
	if c.Caller == nil {
		c.Caller = callerOf
	}
	if c.Allow == nil {
		c.Allow = func(string, uint64) error { return nil }
	}
	if c.Refused == nil {
		c.Refused = func(*http.Request, string, int, error) {}
	}
	if c.Between == nil {
		c.Between = func() time.Duration { return 0 }
	}
	if c.Alive == 0 {
		c.Alive = time.Second
	}
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
	return c
}

// callerOf is the common name of the certificate that who asks has shown.
func callerOf(r *http.Request) (string, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return "", errors.New("no certificate says who asks")
	}
	return r.TLS.PeerCertificates[0].Subject.CommonName, nil
}

// Handler answers the questions of other nodes.
type Handler struct {
	agent  agent.Agent
	config HandlerConfig
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	watches map[agent.Process]*watch
	ended   []agent.Process // of watches, the oldest first
}

// NewHandler returns the handler in front of an agent. The caller closes it.
func NewHandler(a agent.Agent, c HandlerConfig) *Handler {
	ctx, cancel := context.WithCancel(context.Background())
	return &Handler{agent: a, config: c.withDefaults(), ctx: ctx, cancel: cancel, watches: map[agent.Process]*watch{}}
}

// Close ends what is being answered.
func (h *Handler) Close() {
	h.mu.Lock()
	h.cancel()
	h.mu.Unlock()
	h.tasks.Wait()
}

// start runs a task that Close waits for. It reports false after Close.
func (h *Handler) start(task func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return false
	}
	h.tasks.Go(task)
	return true
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method, found := strings.CutPrefix(r.URL.Path, prefix)
	m, known := methods[method]
	if !found || !known || r.Method != http.MethodPost {
		h.refuse(w, r, http.StatusNotFound, older(fmt.Errorf("%s %.80q is no question to an agent of this version", r.Method, r.URL.Path)))
		return
	}
	allowed, status, err := h.admit(r, m)
	if err != nil {
		h.refuse(w, r, status, err)
		return
	}
	q, err := h.read(w, r)
	if err == nil {
		err = q.check(h.config.Node, m.needs)
	}
	if err != nil {
		h.refuse(w, r, refusedAs(err), fmt.Errorf("%s: %w", method, err))
		return
	}
	if m.raw != nil {
		m.raw(h, w, r, q)
		return
	}
	h.answer(w, r, m, q, allowed)
}

// admit asks whether who asks may, and returns how to ask that again.
func (h *Handler) admit(r *http.Request, m method) (allowed func() error, status int, err error) {
	node, err := h.config.Caller(r)
	if err != nil {
		return nil, http.StatusForbidden, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	allowed = func() error { return nil }
	if m.reads {
		return allowed, 0, nil
	}
	term, err := strconv.ParseUint(r.Header.Get(termHeader), 10, 64)
	if err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("the header %s is %.40q, expected a number", termHeader, r.Header.Get(termHeader))
	}
	allowed = func() error {
		if err := h.config.Allow(node, term); err != nil {
			return fmt.Errorf("%w: node %s in term %d: %w", ErrRefused, node, term, err)
		}
		return nil
	}
	return allowed, http.StatusForbidden, allowed()
}

// read reads a question. An unknown field is an error.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (q *question, err error) {
	within := http.NewResponseController(w)
	_ = within.SetReadDeadline(time.Now().Add(h.config.Patience)) // a recorder has none
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, err
	}
	_ = within.SetReadDeadline(time.Time{})
	return decode(text)
}

// older is an error of a question that a later program asks. What this one does not know it must not leave out: the question is refused whole, and passes
// where the node runs that program, or another one is asked.
func older(err error) error {
	return &obstacle.Error{Obstacle: obstacle.Obstacle{Kind: obstacle.Node}, Err: fmt.Errorf("%w: this node runs an older avgpiped than the one that asks: update it", err)}
}

// decode reads a question.
func decode(text []byte) (*question, error) {
	q := &question{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(q); err != nil {
		if _, ofLater := errors.AsType[*spec.NewerError](err); ofLater || strings.Contains(err.Error(), "json: unknown field ") { // encoding/json has no type for it
			err = older(err)
		}
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return q, nil
}

// refusedAs is the status of a question that cannot be read.
func refusedAs(err error) int {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return http.StatusRequestEntityTooLarge
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return http.StatusRequestTimeout
	}
	return http.StatusBadRequest
}

// refuse answers a question that no agent is asked, and tells of it.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, status int, err error) {
	node, callerErr := h.config.Caller(r)
	if callerErr != nil {
		node = ""
	}
	h.config.Refused(r, node, status, err)
	refuse(w, status, err)
}

// refuse answers with an error instead of what was asked for.
func refuse(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Connection", "close")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(failureOf(err)) // whoever has gone asks again
}

// answer has the agent work, and says every second that it does.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, m method, q *question, allowed func() error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(h.ctx, func() { cancel(fmt.Errorf("the daemon is stopping: %w", agent.ErrUnreachable)) })() //nolint:contextcheck // the daemon's end ends it too
	out := &lines{writer: w, patience: h.config.Patience, failed: cancel}
	defer out.close() // the agent may go on for a moment
	w.Header().Set("Content-Type", "application/x-ndjson")
	out.write(line{})
	last := make(chan line, 1)
	if !h.start(func() { last <- m.answer(ctx, h, q, func(e agent.Event) { out.write(line{Event: &e}) }) }) {
		return
	}
	tick := time.NewTicker(h.config.Alive)
	defer tick.Stop()
	for {
		select {
		case l := <-last:
			out.write(l)
			return
		case <-tick.C:
			if err := allowed(); err != nil {
				cancel(err)
				out.write(line{Error: failureOf(err)})
				return
			}
			out.alive()
		case <-ctx.Done():
			out.write(line{Error: failureOf(context.Cause(ctx))})
			return
		}
	}
}

// lines writes an answer.
type lines struct {
	patience time.Duration
	failed   context.CancelCauseFunc

	mu     sync.Mutex
	writer http.ResponseWriter // nil once it is closed
	spoken bool                // something was said since alive was called last
}

// alive writes an empty line, unless something was said since it was called last.
func (l *lines) alive() {
	l.mu.Lock()
	spoken := l.spoken
	l.mu.Unlock()
	if !spoken {
		l.write(line{})
	}
	l.mu.Lock()
	l.spoken = false
	l.mu.Unlock()
}

// write writes a line at once. Whoever does not read it has gone.
func (l *lines) write(what line) {
	text, err := json.Marshal(what)
	if err != nil {
		text, _ = json.Marshal(line{Error: failureOf(fmt.Errorf("encode an answer: %w", err))}) // which can be encoded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writer == nil {
		return
	}
	l.spoken = true
	now := http.NewResponseController(l.writer)
	_ = now.SetWriteDeadline(time.Now().Add(l.patience)) // a recorder has none
	_, err = l.writer.Write(append(text, '\n'))
	if err = errors.Join(err, now.Flush()); err != nil {
		l.failed(err)
		l.writer = nil
	}
}

func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writer != nil {
		_ = http.NewResponseController(l.writer).SetWriteDeadline(time.Time{}) // the connection serves on
	}
	l.writer = nil
}
