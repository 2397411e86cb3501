package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/avgpipe/avgpipe/internal/audit"
)

type openingKey struct{}

// opening is a connection on which requests may begin that no handler is asked about: package http refuses those whose header is malformed, too
// large, or too slow, and tells nobody.
type opening struct {
	from  Peer
	known bool         // who connected is
	begun atomic.Int64 // requests whose first byte came
	asked atomic.Int64 // those that came to a handler
}

// openings writes down the connections on which a request was begun that could not be read.
type openings struct {
	audit func(audit.Record)
	of    sync.Map // net.Conn -> *opening
}

// watch has a server tell of its connections.
func (o *openings) watch(s *http.Server) {
	withPeer := s.ConnContext
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		ctx = withPeer(ctx, c)
		one := &opening{}
		peer, err := peerFrom(ctx)
		one.from, one.known = peer, err == nil
		o.of.Store(c, one)
		return context.WithValue(ctx, openingKey{}, one)
	}
	s.ConnState = func(c net.Conn, state http.ConnState) {
		value, ok := o.of.Load(c)
		if !ok {
			return
		}
		one := value.(*opening) //nolint:forcetypeassert,errcheck // it holds no others
		switch state {
		case http.StateActive:
			one.begun.Add(1)
		case http.StateHijacked:
			o.of.Delete(c)
		case http.StateClosed:
			o.of.Delete(c)
			o.ended(c, one)
		case http.StateNew, http.StateIdle:
		}
	}
}

// ended writes down a connection that ended in a request that nobody was asked. On one of HTTP/2 each request is a stream, and this is not known.
func (o *openings) ended(c net.Conn, one *opening) {
	if one.begun.Load() <= one.asked.Load() {
		return
	}
	record := audit.Record{
		From: cmp.Or(one.from.From, c.RemoteAddr().String()), Operation: "unknown", Status: http.StatusBadRequest,
		Error: "the header of a request could not be read: it is malformed, too long, or did not come in time",
	}
	if one.known {
		record.User, record.UID = one.from.userName(), &one.from.UID
	}
	if secure, ok := c.(*tls.Conn); ok {
		s := secure.ConnectionState()
		if s.NegotiatedProtocol == "h2" {
			return
		}
		if len(s.PeerCertificates) > 0 {
			subject := s.PeerCertificates[0].Subject
			record.User, record.Role = subject.CommonName, strings.Join(subject.Organization, ",")
		}
	}
	o.audit(record)
}
