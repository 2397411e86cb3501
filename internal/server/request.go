package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"regexp"
	"slices"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/audit"
)

// Headers between nodes, beside those of package api.
const (
	headerPeer      = "Avgpipe-Peer"       // who asks, in a request that a node passes on
	headerElsewhere = "Avgpipe-Not-Leader" // in an answer: the request was passed to a node that does not lead, and nothing was done
)

type exchangeKey struct{}

// exchange is what is known of a request while it is answered. One goroutine has it.
type exchange struct {
	id        string
	operation string // of the route; empty: there is none
	changes   bool   // it is to change something, or is written down as if it were
	refused   error  // nil: it was not
	elsewhere bool   // another node answered it, and wrote that down
	quiet     bool   // it is refused as many others were just now
}

// exchangeOf is that of a request; one that nobody reads for a request that did not come through begin.
func exchangeOf(ctx context.Context) *exchange {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return &exchange{}
}

// begin finds out who asks, gives the request its id, refuses those who ask too often, and has changes and refusals written down.
func (h *handler) begin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if r.TLS != nil {
			peer, err := peerOfTLS(r)
			ctx = context.WithValue(ctx, askerKey{}, asker{peer, err})
		}
		if o, ok := ctx.Value(openingKey{}).(*opening); ok {
			o.asked.Add(1)
		}
		peer, _ := peerFrom(ctx) // the guard refuses where it is not known
		x := &exchange{id: requestID(r, peer)}
		r = r.WithContext(context.WithValue(ctx, exchangeKey{}, x))
		w.Header().Set(api.HeaderRequest, x.id)
		out := &statusWriter{ResponseWriter: w}
		defer func() { h.record(r, x, out.status) }()
		if wait, tell := h.accounts.ask(peer); wait > 0 {
			x.quiet = !tell
			h.refuse(out, r, tooMany(r, wait, "you ask more often than this daemon answers one user"))
			return
		}
		next.ServeHTTP(out, r)
	})
}

var requestIDs = regexp.MustCompile(`^[0-9a-f]{16}$`)

// requestID is that which another node gave the request, or a new one.
func requestID(r *http.Request, peer Peer) string {
	if id := r.Header.Get(api.HeaderRequest); peer.Via != "" && requestIDs.MatchString(id) {
		return id
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// deniedStatuses are those of requests that are written down although they were to change nothing: who may not, who asks too often, and what is malformed,
// too large or too slow.
var deniedStatuses = []int{
	http.StatusForbidden, http.StatusTooManyRequests, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusRequestTimeout,
}

// record writes down that a request changed something, or was refused.
func (h *handler) record(r *http.Request, x *exchange, status int) {
	denied := slices.Contains(deniedStatuses, status)
	if h.audit == nil || x.elsewhere || x.quiet || !x.changes && !denied {
		return
	}
	peer, err := peerFrom(r.Context())
	record := audit.Record{
		Request: x.id, From: cmp.Or(peer.From, r.RemoteAddr), Via: peer.Via, Operation: cmp.Or(x.operation, "unknown"), Object: r.URL.Path,
		Status: cmp.Or(status, http.StatusOK),
	}
	if err == nil {
		record.User, record.UID, record.Role = peer.userName(), &peer.UID, string(peer.Role)
	}
	if x.refused != nil {
		record.Error = x.refused.Error()
	}
	h.audit(record)
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int // 0: none was sent
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.status = cmp.Or(w.status, status)
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// errNoCertificate is what TLS does not let happen.
var errNoCertificate = errors.New("the connection has no certificate")
