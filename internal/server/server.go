package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/audit"
)

// Limits of the server.
const (
	maxBody       = 1 << 20          // of a request, bytes
	maxHeader     = 64 << 10         // of a request, bytes
	headerTimeout = 5 * time.Second  // to send a request's header
	readTimeout   = 30 * time.Second // to send a request
	answerTimeout = 2 * time.Minute  // to work an answer out and send it; streams go by writeTimeout
	writeTimeout  = 30 * time.Second // to take one piece of a stream
	idleTimeout   = 2 * time.Minute  // between requests of a connection
	closeTimeout  = 2 * time.Second  // for running requests when the server ends
)

// Config is what Serve needs. Listener, Backend and Log are required.
type Config struct {
	// Listener is a unix socket's, or one whose connections are *tls.Conn: then certificates say who asks. Serve closes it.
	Listener net.Listener
	Backend  Backend
	Log      *zap.Logger
	// AdminGroup is the group whose members may do everything with every job. It need not exist.
	AdminGroup string
	// Cluster finds the node that leads. Nil: this node is alone.
	Cluster Cluster
	// Audit is told of every change and of everybody who is refused. It is called concurrently and does not block. Nil: nobody is.
	Audit func(audit.Record)
	// Limits bound what one user may ask.
	Limits Limits
	// HeaderTimeout is how long the header of a request may take, and ReadTimeout all of it. Default 5 s and 30 s.
	HeaderTimeout, ReadTimeout time.Duration
}

// Serve answers requests until ctx ends, then cancels the running ones and returns when they have. It fails only when the
// listener does.
func Serve(ctx context.Context, c Config) error {
	s := &http.Server{
		Handler: Handler(c), WriteTimeout: answerTimeout, ConnContext: withPeer, ReadHeaderTimeout: c.HeaderTimeout, ReadTimeout: c.ReadTimeout,
	}
	if c.Audit != nil {
		(&openings{audit: c.Audit}).watch(s)
	}
	return serve(ctx, c.Listener, s, c.Log)
}

// ServeMonitoring answers /metrics, /healthz and /readyz, and nothing of the API, until ctx ends. It closes the listener.
func ServeMonitoring(ctx context.Context, l net.Listener, b Backend, log *zap.Logger) error {
	h := &handler{backend: b, log: log}
	return serve(ctx, l, &http.Server{Handler: h.serve(h.monitoring()), WriteTimeout: writeTimeout}, log)
}

// ServeHandler answers what nodes ask of each other, until ctx ends. It closes the listener. connContext, unless nil, is called of each
// connection.
func ServeHandler(ctx context.Context, l net.Listener, h http.Handler, connContext func(context.Context, net.Conn) context.Context, log *zap.Logger) error {
	return serve(ctx, l, &http.Server{Handler: h, WriteTimeout: answerTimeout, ConnContext: connContext}, log)
}

// serve runs a server on a listener until ctx ends.
func serve(ctx context.Context, l net.Listener, s *http.Server, log *zap.Logger) error {
	requests, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ReadHeaderTimeout, s.ReadTimeout, s.IdleTimeout = cmp.Or(s.ReadHeaderTimeout, headerTimeout), cmp.Or(s.ReadTimeout, readTimeout), idleTimeout
	s.MaxHeaderBytes, s.ErrorLog = maxHeader, zap.NewStdLog(log)
	s.BaseContext = func(net.Listener) context.Context { return requests }
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	ending, done := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer done()
	if err := s.Shutdown(ending); err != nil {
		log.Warn("requests did not end, closing them", zap.Error(err))
		if err := s.Close(); err != nil {
			log.Warn("close the server", zap.Error(err))
		}
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Handler returns the API as a handler, for Serve and for tests.
func Handler(c Config) http.Handler {
	h := &handler{
		backend: c.Backend, log: c.Log, rights: rights{adminGroup: c.AdminGroup}, cluster: c.Cluster, audit: c.Audit,
		accounts: &accounts{limits: c.Limits.withDefaults()},
	}
	return h.begin(h.serve(h.routes()))
}

type handler struct {
	backend  Backend
	log      *zap.Logger
	rights   rights
	cluster  Cluster            // nil: this node is alone
	audit    func(audit.Record) // nil: nobody is told
	accounts *accounts          // nil: nobody is refused
}

// answer turns a function that returns a value into a handler that sends it as JSON.
func (h *handler) answer(status int, f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := f(r)
		if err != nil {
			h.refuse(w, r, err)
			return
		}
		h.send(w, r, status, value)
	}
}

// send writes a value as JSON. The header is gone by the time that writing can fail, so a failure is only logged.
func (h *handler) send(w http.ResponseWriter, r *http.Request, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		h.log.Error("encode an answer", zap.String("path", r.URL.Path), zap.Error(err))
		status = http.StatusInternalServerError
		text = []byte(`{"error":"internal error: the answer cannot be encoded","code":"internal"}`)
	}
	w.Header().Set("Content-Type", typeJSON)
	w.WriteHeader(status)
	if _, err := w.Write(append(text, '\n')); err != nil {
		h.log.Debug("send an answer", zap.String("path", r.URL.Path), zap.Error(err))
	}
}

// refuse sends an error.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var e *api.Error
	if !errors.As(err, &e) {
		h.log.Error("request failed", zap.String("method", r.Method), zap.String("path", r.URL.Path), zap.Error(err))
		e = api.Errorf(http.StatusInternalServerError, "%v", err)
	}
	exchangeOf(r.Context()).refused = e
	sent := *e
	sent.Status = cmp.Or(e.Status, http.StatusInternalServerError)
	if code, ok := api.CodeOf(sent.Status); ok && sent.Code == "" {
		sent.Code = code
	}
	if sent.Status == http.StatusServiceUnavailable || sent.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter(sent.RetryAfter))
	}
	h.send(w, r, sent.Status, &sent)
}

func unknown(r *http.Request) (any, error) {
	return nil, api.Errorf(http.StatusNotFound, "%s %s: the API has no such path", r.Method, r.URL.Path)
}

// readBody reads the JSON body of a request, and who sends it.
func readBody[B any](r *http.Request) (body B, peer Peer, err error) {
	if peer, err = peerFrom(r.Context()); err != nil {
		return body, peer, err
	}
	peer = peer.withGroups()
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err = decoder.Decode(&body); err == nil {
		if _, err = decoder.Token(); errors.Is(err, io.EOF) {
			return body, peer, nil
		}
		err = errors.New("something follows its JSON object")
	}
	return body, peer, bodyError(r, err)
}

// bodyError refuses a request whose body cannot be read.
func bodyError(r *http.Request, err error) error {
	verb := r.Method + " " + r.URL.Path
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return api.Errorf(http.StatusRequestEntityTooLarge, "%s: the request has more than %d bytes", verb, large.Limit)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return api.Errorf(http.StatusRequestTimeout, "%s: the request's body did not come in time: send it at once", verb)
	}
	return api.Errorf(http.StatusBadRequest, "%s: the request's body %s", verb, bodyProblem(err))
}

// bodyProblem says in the terms of JSON what a decoder found.
func bodyProblem(err error) string {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return "is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "ends before its JSON object does"
	case errors.As(err, &syntax):
		return fmt.Sprintf("is no JSON: the fault is at byte %d", syntax.Offset)
	case errors.As(err, &mismatch):
		return fmt.Sprintf("has a value of the wrong type, %s, in %q", mismatch.Value, mismatch.Field)
	}
	if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok { // encoding/json has no type for it
		return fmt.Sprintf("has the key %s, which this request does not have", name)
	}
	return "cannot be read: " + err.Error()
}

// jobs lists all jobs, as far as whoever asks may see them.
func (h *handler) jobs(r *http.Request) ([]api.JobStatus, error) {
	jobs, err := h.backend.Jobs(r.Context())
	return h.visible(r, jobs), err
}

// history reads ?from=STEP and ?points=N.
func (h *handler) history(r *http.Request) (none api.History, err error) {
	request := api.HistoryRequest{}
	if request.From, err = number(r, "from", math.MaxInt64, "a step, counted from 0"); err != nil {
		return none, err
	}
	points, err := number(r, "points", math.MaxInt32, "a number of points; 0, or left out, means all")
	if err != nil {
		return none, err
	}
	request.Points = int(points) //nolint:gosec // below MaxInt32
	return h.backend.History(r.Context(), r.PathValue("job"), request)
}

// number reads a parameter of a request's query; 0 when it is not there.
func number(r *http.Request, name string, limit uint64, allowed string) (uint64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > limit {
		return 0, api.Errorf(http.StatusBadRequest, "%s %s: %s=%q; allowed is %s", r.Method, r.URL.Path, name, text, allowed)
	}
	return n, nil
}
