package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
)

// Cluster is what the server of a node that is one of several knows of the node that leads. Its methods are called concurrently.
type Cluster interface {
	// Leads reports whether this node leads and answers by itself.
	Leads() bool
	// Leader waits until it is known which node leads, and returns it, or an error when ctx has ended, or at once where that will never be known: ErrNotMember.
	Leader(ctx context.Context) (Leader, error)
	// Left waits until the node of a name does not lead any more, as far as this node knows, or ctx ends.
	Left(ctx context.Context, name string)
	// Current asks the others whether this node, which led when it last looked, leads still. Without an error everything that was answered before is
	// in what this node has.
	Current(ctx context.Context) error
	// Age is how old what this node has is, or an error where nobody knows.
	Age() (time.Duration, error)
}

// ErrNotMember is wrapped by the error of a node that will never know which node leads: it was removed from the cluster.
var ErrNotMember = errors.New("this node is no member of its cluster")

// Leader is the node that leads.
type Leader struct {
	Name string
	// Transport carries requests to it, as this node; nil: it is this node.
	Transport http.RoundTripper
}

const (
	leaderWait   = 10 * time.Second // for a leader, by what is not answered without one
	freshWait    = 2 * time.Second  // by what is, on a node that has just started: a leader that there is speaks several times a second
	passAttempts = 4                // of one request: the node that leads may change meanwhile
	passPause    = 200 * time.Millisecond
)

// onLeader answers a route on the node that leads: another node passes the request on. Where none leads, reads of the replicated state are
// answered from what this node has of it, and say how old that is.
func (h *handler) onLeader(r route, next http.Handler) http.Handler {
	if h.cluster == nil || r.here {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		peer, err := peerFrom(q.Context())
		switch {
		case err != nil || h.leads(q.Context()): // the guard refuses those who are not known
			next.ServeHTTP(w, q)
		case peer.Via != "": // at most one hop, so that nothing goes round
			w.Header().Set(headerElsewhere, "1")
			exchangeOf(q.Context()).elsewhere = true
			h.refuse(w, q, unavailable(q, "this node does not lead any more"))
		case r.who == admin && h.permit(admin, q) != nil: // any node knows that, and reads no body of theirs
			h.refuse(w, q, h.permit(admin, q))
		default:
			h.pass(w, q, r, peer, next)
		}
	})
}

// leads reports whether this node leads. One that was stopped for a while believes so until it has asked.
func (h *handler) leads(ctx context.Context) bool {
	return h.cluster.Leads() && h.cluster.Current(ctx) == nil
}

func unavailable(q *http.Request, why string) error {
	return api.Errorf(http.StatusServiceUnavailable, "%s %s: %s; ask again", q.Method, q.URL.Path, why)
}

// pass has a request answered by the node that leads.
func (h *handler) pass(w http.ResponseWriter, q *http.Request, r route, peer Peer, next http.Handler) {
	body, err := io.ReadAll(q.Body) // it is bounded
	if err != nil {
		h.refuse(w, q, bodyError(q, err))
		return
	}
	wait := leaderWait
	if r.stale {
		wait = time.Millisecond // what this node has is an answer too
		if _, unknown := h.cluster.Age(); unknown != nil {
			wait = freshWait
		}
	}
	waiting, cancel := context.WithTimeout(q.Context(), wait)
	defer cancel()
	for attempt := range passAttempts {
		if attempt > 0 {
			pause(waiting, passPause)
		}
		leader, failed := h.cluster.Leader(waiting)
		if failed != nil {
			err = errors.Join(err, failed)
			break
		}
		if leader.Transport == nil {
			if err = h.cluster.Current(waiting); err != nil {
				continue
			}
			q.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(w, q)
			return
		}
		var answer *http.Response
		var again bool
		if answer, again, err = h.askLeader(q, leader, body, peer); err == nil {
			exchangeOf(q.Context()).elsewhere = true
			h.relay(w, q, answer)
			return
		}
		if !again || q.Context().Err() != nil {
			break
		}
	}
	if r.stale && q.Context().Err() == nil {
		age, unknown := h.cluster.Age()
		if unknown == nil {
			w.Header().Set(api.HeaderLeaderless, strings.ReplaceAll(err.Error(), "\n", "; "))
			w.Header().Set(api.HeaderAge, strconv.FormatFloat(math.Ceil(age.Seconds()*1000)/1000, 'f', 3, 64))
			next.ServeHTTP(w, q)
			return
		}
		err = errors.Join(err, unknown)
	}
	if errors.Is(err, ErrNotMember) {
		h.refuse(w, q, api.Errorf(http.StatusConflict, "%s %s: %v", q.Method, q.URL.Path, err))
		return
	}
	h.refuse(w, q, unavailable(q, fmt.Sprintf("no node that leads can be reached: %v", err)))
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// errLeft is why a node that was asked is not waited for any more: one that hangs says nothing for as long.
var errLeft = errors.New("it does not lead any more, and has not said whether it did this")

// askLeader sends a request to the node that leads, and waits for the beginning of its answer while that node leads. again: it was not carried out, or
// changes nothing, so that one may ask another.
func (h *handler) askLeader(q *http.Request, leader Leader, body []byte, peer Peer) (answer *http.Response, again bool, err error) {
	who, err := h.rights.toPass(peer).encode()
	if err != nil {
		return nil, false, err
	}
	out, err := http.NewRequestWithContext(q.Context(), q.Method, "https://"+leader.Name+q.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil, false, fmt.Errorf("pass the request to %s: %w", leader.Name, err)
	}
	for _, name := range []string{"Content-Type", "Accept", "Accept-Encoding"} {
		if values := q.Header.Values(name); len(values) > 0 {
			out.Header[name] = values
		}
	}
	out.Header.Set(headerPeer, who)
	out.Header.Set(api.HeaderRequest, exchangeOf(q.Context()).id)
	answer, err = h.whileLeading(leader, out)
	if err != nil {
		op, ok := errors.AsType[*net.OpError](err)
		read := q.Method == http.MethodGet || q.Method == http.MethodHead
		return nil, read || ok && op.Op == "dial", fmt.Errorf("pass the request to %s, which leads: %w", leader.Name, err)
	}
	if answer.Header.Get(headerElsewhere) != "" {
		_ = answer.Body.Close() // an error, which another leader will not say
		return nil, true, fmt.Errorf("%s does not lead any more", leader.Name)
	}
	return answer, false, nil
}

// whileLeading makes a request that ends early once the node that is asked does not lead any more.
func (h *handler) whileLeading(leader Leader, out *http.Request) (*http.Response, error) {
	ctx, giveUp := context.WithCancelCause(out.Context())
	watching, answered := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		if h.cluster.Left(watching, leader.Name); watching.Err() == nil {
			giveUp(errLeft)
		}
	})
	answer, err := leader.Transport.RoundTrip(out.WithContext(ctx))
	answered()
	watch.Wait()
	if err != nil {
		if errors.Is(context.Cause(ctx), errLeft) {
			err = errLeft
		}
		giveUp(nil)
		return nil, err
	}
	answer.Body = &passed{answer.Body, giveUp}
	return answer, nil
}

// passed is the body of an answer to a request that was passed on.
type passed struct {
	io.ReadCloser
	end context.CancelCauseFunc // of the request
}

// Close implements io.Closer.
func (p *passed) Close() error {
	defer p.end(nil)
	return p.ReadCloser.Close() //nolint:wrapcheck // as io.Closer has it
}

// relay sends the answer of another node, piece by piece as it comes. One that breaks off there breaks off here.
func (h *handler) relay(w http.ResponseWriter, q *http.Request, answer *http.Response) {
	defer answer.Body.Close() //nolint:errcheck // only read
	for _, name := range slices.Sorted(maps.Keys(answer.Header)) {
		switch name {
		case "Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Trailer", headerElsewhere: // of the connection
		default:
			w.Header()[name] = answer.Header[name]
		}
	}
	w.WriteHeader(answer.StatusCode)
	out := &streamWriter{w: w, control: http.NewResponseController(w), started: true}
	buffer := make([]byte, 64<<10)
	for {
		n, err := answer.Body.Read(buffer)
		if n > 0 {
			if _, err := out.Write(buffer[:n]); err != nil {
				panic(http.ErrAbortHandler) // who asked has gone
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			if q.Context().Err() == nil {
				h.log.Warn("the answer of the node that leads broke off", zap.String("path", q.URL.Path), zap.Error(err))
			}
			panic(http.ErrAbortHandler)
		}
	}
}
