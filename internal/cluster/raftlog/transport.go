package raftlog

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// Bounds of what Raft says to another node.
const (
	transportConns   = 1                // that are kept for the next message, to each node, beside the one that entries go over; each takes 256 KiB
	transportTimeout = 10 * time.Second // of one message; a snapshot gets more, by its length
)

// Transport carries Raft's messages over connections that others make and accept.
type Transport struct {
	*raft.NetworkTransport
	streams  *streams
	contacts *contacts
	pace     *pace
	received chan raft.RPC // what is handed on to Raft
	closing  chan struct{}
	closed   sync.Once
	pump     sync.WaitGroup
}

// Close ends the transport and every connection that it has accepted: the library leaves those to the nodes that made them.
func (t *Transport) Close() error {
	t.closed.Do(func() { close(t.closing) })
	err := errors.Join(t.NetworkTransport.Close(), t.streams.closeAccepted())
	t.pump.Wait()
	return err
}

// Consumer implements raft.Transport.
func (t *Transport) Consumer() <-chan raft.RPC { return t.received }

// hand hands on what other nodes say, and notes what the leader does.
func (t *Transport) hand() {
	for {
		var rpc raft.RPC
		select {
		case rpc = <-t.NetworkTransport.Consumer():
		case <-t.closing:
			return
		}
		if q, ok := rpc.Command.(*raft.AppendEntriesRequest); ok {
			t.contacts.hear(q)
		}
		select {
		case t.received <- rpc:
		case <-t.closing:
			return
		}
	}
}

// AppendEntries implements raft.Transport.
func (t *Transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	if isHeartbeat(q) && t.pace.spares(id) {
		r.Term, r.Success = q.Term, true
		return nil
	}
	begun := time.Now()
	err := t.NetworkTransport.AppendEntries(id, target, q, r)
	if err == nil && r.Success {
		t.contacts.answer(id, q.Term, begun, r.LastLog)
	}
	return err
}

// AppendEntriesPipeline implements raft.Transport.
func (t *Transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &pacedPipeline{AppendPipeline: p, pace: t.pace, id: id, full: raft.DefaultConfig().MaxAppendEntries, patience: transportTimeout}, nil
}

// NewTransport returns a transport whose local address, HOST:PORT, is where others reach the listener. dial connects to such an address. The
// Log that it is given to closes it, and with it the listener.
func NewTransport(listener net.Listener, address string, dial func(ctx context.Context, address string) (net.Conn, error), log *zap.Logger) *Transport {
	layer := &streams{Listener: listener, address: raftAddress(address), dial: dial, accepted: map[*accepted]bool{}}
	t := &Transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: layer, MaxPool: transportConns, Timeout: transportTimeout, Logger: raftLogger(log),
		}),
		streams: layer, contacts: newContacts(), received: make(chan raft.RPC), closing: make(chan struct{}),
	}
	t.pace = newPace(t.closing)
	t.pump.Go(t.hand)
	return t
}

// raftAddress is a HOST:PORT as an address of a network.
type raftAddress string

func (raftAddress) Network() string  { return "tcp" }
func (a raftAddress) String() string { return string(a) }

// streams implements raft.StreamLayer.
type streams struct {
	net.Listener
	address raftAddress
	dial    func(ctx context.Context, address string) (net.Conn, error)

	mu       sync.Mutex
	closed   bool
	accepted map[*accepted]bool
}

// accepted is a connection that another node made.
type accepted struct {
	net.Conn
	of *streams
}

// Close implements net.Conn.
func (c *accepted) Close() error {
	c.of.mu.Lock()
	delete(c.of.accepted, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// Accept implements net.Listener.
func (s *streams) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &accepted{conn, s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	s.accepted[c] = true
	return c, nil
}

// closeAccepted closes what was accepted, and what still is.
func (s *streams) closeAccepted() (err error) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.accepted))
	s.closed = true
	s.mu.Unlock()
	for _, c := range all {
		err = errors.Join(err, c.Close())
	}
	return err
}

func (s *streams) Addr() net.Addr { return s.address }

// Dial implements raft.StreamLayer.
func (s *streams) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout) // the interface passes none
	defer cancel()
	return s.dial(ctx, string(address))
}
