package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/membership"
	"github.com/avgpipe/avgpipe/internal/mux"
)

// toldDropped is how often at most datagrams that were dropped are told of.
const toldDropped = time.Minute

// gossip is what a node of several hears of the others without asking them.
type gossip struct {
	packets net.PacketConn // UDP, of the port's number
	list    atomic.Pointer[membership.List]
	wake    chan struct{} // something changed
	told    atomic.Int64  // when datagrams that were dropped were told of, Unix ns
}

// openGossip opens the port for datagrams.
func openGossip(ctx context.Context, port net.Addr) (*gossip, error) {
	packets, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", port.String())
	if err != nil {
		return nil, fmt.Errorf("listen for gossip on the UDP port of the same number: %w", err)
	}
	return &gossip{packets: packets, wake: make(chan struct{}, 1)}, nil
}

// close closes the port.
func (g *gossip) close() error {
	if err := g.packets.Close(); !errors.Is(err, net.ErrClosed) { // the list has closed it
		return err
	}
	return nil
}

// members is what gossip says of the nodes; nothing before this one has the state of its cluster.
func (g *gossip) members() map[string]membership.Member {
	if list := g.list.Load(); list != nil {
		return list.Members()
	}
	return nil
}

// keepGossip gossips from when this node has the state of its cluster until ctx ends, and then says to the others that it stops.
func (n *node) keepGossip(ctx context.Context) error {
	state, changed := n.raft.Changed()
	for state.Authority() == nil {
		select {
		case <-changed:
			state, changed = n.raft.Changed()
		case <-ctx.Done():
			return nil
		}
	}
	m, g := n.member, n.member.gossip
	list, err := membership.Open(membership.Config{ //nolint:contextcheck // it lives until Close
		Name: n.id, Version: n.config.Version, Commands: cluster.CommandVersion, Oldest: n.config.Protocols.Oldest, Newest: n.config.Protocols.Newest,
		Cluster: state.Authority().Cluster, Key: state.Authority().GossipKey,
		ProbeEvery: n.config.ProbeEvery,
		Packets:    g.packets, Streams: m.mux.Listener(mux.ProtocolGossip), Log: n.log,
		Dial: func(ctx context.Context, name string) (net.Conn, error) {
			known, err := n.raft.State().Node(name)
			if err != nil {
				return nil, err
			}
			return m.dial(ctx, mux.ProtocolGossip, name, known.Address)
		},
		Peers: func() map[string]string {
			peers := map[string]string{}
			for _, node := range n.raft.State().Nodes() {
				peers[node.Name] = node.Address
			}
			return peers
		},
		Events: membership.Events{Changed: n.heard, Dropped: n.dropped},
	})
	if err != nil {
		return fmt.Errorf("gossip: %w", err)
	}
	g.list.Store(list)
	<-ctx.Done()
	if err := list.Leave(); err != nil {
		n.log.Debug("not every node was told that this one stops", zap.Error(err))
	}
	g.list.Store(nil)
	return list.Close()
}

// heard is told what gossip says of a node.
func (n *node) heard(name string, m membership.Member) {
	n.log.Info("gossip", zap.String("member", name), zap.String("state", string(m.State)), zap.String("version", m.Version))
	select {
	case n.member.gossip.wake <- struct{}{}:
	default:
	}
}

// dropped is told of a datagram that was dropped.
func (n *node) dropped(from net.Addr, err error) {
	g, now := n.member.gossip, time.Now().UnixNano()
	last := g.told.Load()
	if list := g.list.Load(); list != nil && now-last > int64(toldDropped) && g.told.CompareAndSwap(last, now) {
		n.log.Warn("datagrams on the port of gossip are dropped", zap.Stringer("from", from), zap.Uint64("count", list.Dropped()), zap.Error(err))
	}
}

// oldestCommands is the newest version of commands that every node knows, for a program of a version. Two adjacent versions may be mixed: of a node
// that was not heard of, it is that of this program or the one before.
func oldestCommands(nodes []*cluster.Node, heard map[string]membership.Member, version string) int {
	oldest := cluster.CommandVersion
	for _, node := range nodes {
		switch commands := heard[node.Name].Commands; {
		case commands > 0:
			oldest = min(oldest, commands)
		case node.Version != version:
			oldest = min(oldest, max(1, cluster.CommandVersion-1))
		}
	}
	return oldest
}
