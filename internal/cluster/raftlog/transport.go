package raftlog

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// Bounds of what Raft says to another node.
const (
	transportConns   = 3                // that are kept, to each node
	transportTimeout = 10 * time.Second // of one message; a snapshot gets more, by its length
)

// Transport carries Raft's messages over connections that others make and accept.
type Transport struct{ *raft.NetworkTransport }

// NewTransport returns a transport whose local address, HOST:PORT, is where others reach the listener. dial connects to such an address. The
// Log that it is given to closes it, and with it the listener.
func NewTransport(listener net.Listener, address string, dial func(ctx context.Context, address string) (net.Conn, error), log *zap.Logger) *Transport {
	layer := &streams{Listener: listener, address: raftAddress(address), dial: dial}
	return &Transport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: transportConns, Timeout: transportTimeout, Logger: raftLogger(log),
	})}
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
}

func (s *streams) Addr() net.Addr { return s.address }

// Dial implements raft.StreamLayer.
func (s *streams) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout) // the interface passes none
	defer cancel()
	return s.dial(ctx, string(address))
}
