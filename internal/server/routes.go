package server

import (
	"cmp"
	"context"
	_ "embed" // for Description
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/api"
)

// route is one operation of the API. The handler and the description of the API are both made of these.
type route struct {
	method, path string // a pattern of http.ServeMux: "/v1/jobs/{job}"
	name         string // operationId
	does         string // a sentence
	who          right  // may use it
	here         bool   // every node answers for itself
	stale        bool   // where no node leads, every node answers from what it has of the replicated state
	reads        bool   // it changes nothing, whatever its method
	told         bool   // whoever gets it is written down, although it changes nothing
	query        []parameter
	request      any    // a value of the body's type; nil: no body, or one of contentIn
	contentIn    string // of a body that is no JSON; empty: it is JSON
	most         int64  // bytes of the body; 0: maxBody
	status       int    // of success; 0: 200
	answer       any    // a value of the type of what is sent, or of each line; nil: no JSON
	contentType  string // of the answer; empty: JSON

	// One of them answers.
	value  func(*http.Request) (any, error)
	stream func(*http.Request, io.Writer) error
	plain  http.Handler
}

// parameter is one of a query.
type parameter struct {
	name    string
	does    string
	example any // a value of its type
}

// checkQuery refuses parameters that the route does not have, and those that are there twice.
func (r route) checkQuery(q *http.Request) error {
	given, err := url.ParseQuery(q.URL.RawQuery)
	if err != nil {
		return api.Errorf(http.StatusBadRequest, "%s %s: the query cannot be read: %q", q.Method, q.URL.Path, q.URL.RawQuery)
	}
	var names []string
	for _, p := range r.query {
		names = append(names, p.name)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		switch {
		case len(names) == 0:
			return api.Errorf(http.StatusBadRequest, "%s %s: the query has %q; this request has no parameters", q.Method, q.URL.Path, name)
		case !slices.Contains(names, name):
			return api.Errorf(http.StatusBadRequest, "%s %s: the query has %q; allowed are %s", q.Method, q.URL.Path, name, strings.Join(names, ", "))
		case len(given[name]) > 1:
			return api.Errorf(http.StatusBadRequest, "%s %s: the query has %q %d times", q.Method, q.URL.Path, name, len(given[name]))
		}
	}
	return nil
}

// The content types of answers.
const (
	typeJSON  = "application/json"
	typeLines = api.ContentTypeStream // a JSON value per line
)

// answering makes f answer a route, whose description then has the type that f returns.
func answering[A any](r route, f func(*http.Request) (A, error)) route {
	var answer A
	r.answer = answer
	r.value = func(q *http.Request) (any, error) { return f(q) }
	return r
}

// ofJob answers with what f says of the job in the path.
func ofJob[A any](r route, f func(context.Context, string) (A, error)) route {
	return answering(r, func(q *http.Request) (A, error) { return f(q.Context(), q.PathValue("job")) })
}

// byPeer answers with what f does with what the path names for whoever asks.
func byPeer[A any](r route, what string, f func(context.Context, string, Peer) (A, error)) route {
	return answering(r, func(q *http.Request) (answer A, err error) {
		peer, err := peerFrom(q.Context())
		if err != nil {
			return answer, err
		}
		return f(q.Context(), q.PathValue(what), peer)
	})
}

// fromBody answers with what f makes of the request's body for whoever asks.
func fromBody[B, A any](r route, f func(*http.Request, B, Peer) (A, error)) route {
	var body B
	r.request = body
	return answering(r, func(q *http.Request) (answer A, err error) {
		body, peer, err := readBody[B](q)
		if err != nil {
			return answer, err
		}
		return f(q, body, peer)
	})
}

// ofFile is fromBody for a job file.
func ofFile[A any](r route, f func(context.Context, api.SubmitRequest, Peer) (A, error)) route {
	return fromBody(r, func(q *http.Request, file api.SubmitRequest, peer Peer) (A, error) { return f(q.Context(), file, peer) })
}

// routes is the API. A new operation is a row here, with who may use it and the function of the backend that answers; then run
// `go generate ./internal/server`.
func (h *handler) routes() []route {
	b := h.backend
	return slices.Concat([]route{
		ofFile(route{
			method: http.MethodPost, path: api.PathJobs, name: "submit", who: submitter, does: "Check a job file and queue the job.",
			status: http.StatusCreated,
		}, b.Submit),
		answering(route{method: http.MethodGet, path: api.PathJobs, name: "jobs", who: anyone, stale: true, does: "List every job, in the order of submission."}, h.jobs),
		{
			method: http.MethodPost, path: api.PathTune, name: "tune", who: submitter,
			does:    "Tune a job file and submit nothing: send how far it is, and at the end the report or why there is none.",
			request: api.SubmitRequest{}, answer: api.TuneUpdate{}, contentType: typeLines, stream: h.tune,
		},
		ofFile(route{
			method: http.MethodPost, path: api.PathDryRun, name: "dryRun", who: submitter, reads: true, does: "Say what a job would be; start and store nothing.",
		}, b.DryRun),
		answering(route{method: http.MethodGet, path: api.PathNodes, name: "nodes", who: anyone, stale: true, does: "List the nodes of the cluster."},
			func(q *http.Request) ([]api.NodeStatus, error) { return b.Nodes(q.Context()) }),
		byPeer(route{
			method: http.MethodPost, path: api.PathGPUs + "/{gpu}/clear", name: "clearGPU", who: admin,
			does: "Forget what errors (XIDs) said of a GPU: it is well again. What its readings say stays.",
		}, "gpu", b.ClearGPU),
		answering(route{method: http.MethodGet, path: api.PathVersion, name: "version", who: anyone, here: true, does: "Say which program this is."},
			func(*http.Request) (api.VersionInfo, error) { return b.Version(), nil }),
		{
			method: http.MethodGet, path: api.PathDescription, name: "openapi", who: anyone, here: true, does: "Send this description.",
			answer: map[string]any{}, value: func(*http.Request) (any, error) { return json.RawMessage(Description), nil },
		},
	}, h.memberRoutes(), h.stateRoutes(), h.jobRoutes(), h.monitoring())
}

// jobRoutes are the operations on one job.
func (h *handler) jobRoutes() []route {
	const job = api.PathJobs + "/{job}"
	b := h.backend
	return []route{
		ofJob(route{method: http.MethodGet, path: job, name: "job", who: owner, stale: true, does: "Say where a job stands."}, b.Job),
		ofJob(route{
			method: http.MethodGet, path: job + "/explain", name: "explain", who: owner, does: "Say how a job is laid over its devices and why.",
		}, b.Explain),
		ofJob(route{
			method: http.MethodGet, path: job + "/audit", name: "audit", who: owner, stale: true,
			does: "Say which samples stand behind a job's last committed round, and whether each was consumed once.",
		}, b.Audit),
		byPeer(route{
			method: http.MethodPost, path: job + "/cancel", name: "cancel", who: owner, does: "Ask a job to commit and stop, without waiting for it.",
			status: http.StatusAccepted,
		}, "job", b.Cancel),
		fromBody(route{
			method: http.MethodPost, path: job + "/resume", name: "resume", who: owner,
			does:   "Restart a job that failed, was cancelled or is waiting from a committed round.",
			status: http.StatusAccepted,
		}, func(q *http.Request, r api.ResumeRequest, peer Peer) (api.JobStatus, error) {
			return b.Resume(q.Context(), q.PathValue("job"), r, peer)
		}),
		byPeer(route{
			method: http.MethodDelete, path: job, name: "remove", who: owner, does: "Forget an ended job and delete what is kept of it; send its last status.",
		}, "job", b.Remove),
		{
			method: http.MethodGet, path: job + "/watch", name: "watch", who: owner,
			does:   "Send the job's status whenever it changes, at most 4 times a second; the last one has ended.",
			answer: api.JobStatus{}, contentType: typeLines, stream: h.watch,
		},
		{
			method: http.MethodGet, path: job + "/logs", name: "logs", who: owner, does: "Send the job's log, an entry per line.",
			query: []parameter{
				{"follow", "1: go on until the job has ended", ""},
				{"tail", "at most so many entries, the last ones; 0: all", 0},
				{"since", "only entries from this time on, as in RFC 3339", ""},
				{"level", "the least severe level: debug, info, warn or error", ""},
				{"after", "only entries after the one with this cursor", ""},
			},
			answer: map[string]any{}, contentType: typeLines, stream: h.logs,
		},
		answering(route{
			method: http.MethodGet, path: job + "/history", name: "history", who: owner, does: "Say how the job's training went, step by step.",
			query: []parameter{
				{"from", "the first step", uint64(0)}, {"points", "at most so many points and evaluations, merged evenly; 0: all that are kept", 0},
			},
		}, h.history),
		{
			method: http.MethodGet, path: job + "/model", name: "model", who: owner, does: "Send the exported model of the last committed round.",
			contentType: "application/x-tar",
			stream:      func(q *http.Request, w io.Writer) error { return b.Model(q.Context(), q.PathValue("job"), w) },
		},
	}
}

// Description is the API in OpenAPI 3.1. A test writes it from the routes, the types of package api and their comments.
//
//go:generate go test -run TestDescriptionIsCurrent . -rewrite
//go:embed openapi.json
var Description []byte

// handlerOf makes a handler of what answers a route.
func (h *handler) handlerOf(r route) http.Handler {
	if r.plain != nil {
		return r.plain
	}
	answer := h.stream(r.contentType, r.stream)
	if r.value != nil {
		answer = h.answer(cmp.Or(r.status, http.StatusOK), r.value)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if err := r.checkQuery(q); err != nil {
			h.refuse(w, q, err)
			return
		}
		answer(w, q)
	})
}

// note keeps what a request is about, for the record of changes.
func (h *handler) note(r route, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		x := exchangeOf(q.Context())
		x.operation, x.changes = r.name, r.told || r.method != http.MethodGet && !r.reads
		next.ServeHTTP(w, q)
	})
}

// serve makes a handler of the routes. A path with another method is refused with those that it has.
func (h *handler) serve(routes []route) http.Handler {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for _, r := range routes {
		mux.Handle(r.method+" "+r.path, h.note(r, bounded(r, h.onLeader(r, h.guard(r.who, h.handlerOf(r))))))
		methods[r.path] = append(methods[r.path], r.method)
		if r.method == http.MethodGet {
			methods[r.path] = append(methods[r.path], http.MethodHead) // as ServeMux does
		}
	}
	for _, path := range slices.Sorted(maps.Keys(methods)) {
		allowed := strings.Join(slices.Sorted(slices.Values(methods[path])), ", ")
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allowed)
			h.refuse(w, r, api.Errorf(http.StatusMethodNotAllowed, "%s %s: this path takes %s", r.Method, r.URL.Path, allowed))
		})
	}
	mux.HandleFunc("/", h.answer(http.StatusOK, unknown))
	return mux
}
