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
	peers   atomic.Pointer[peers]
}

// peers are where the members are, by name. Gossip asks for them with each thing that it hears of a node.
type peers struct {
	nodes []*cluster.Node // the members, as their state has them
	at    map[string]string
}

// peersOf are the peers among members, made anew only where those have changed. Nobody changes what it returns.
func (g *gossip) peersOf(nodes []*cluster.Node) map[string]string {
	if last := g.peers.Load(); last != nil && sameNodes(last.nodes, nodes) {
		return last.at
	}
	p := &peers{nodes, make(map[string]string, len(nodes))}
	for _, node := range nodes {
		p.at[node.Name] = node.Address
	}
	g.peers.Store(p)
	return p.at
}

// sameNodes reports whether both are the members of states between which no member has changed: those share the slice.
func sameNodes(a, b []*cluster.Node) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
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

// memberOf is what gossip says of a node.
func (g *gossip) memberOf(name string) membership.Member {
	if list := g.list.Load(); list != nil {
		return list.Member(name)
	}
	return membership.Member{}
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
		Peers:  func() map[string]string { return g.peersOf(n.raft.State().Nodes()) },
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
	n.member.gossip.tell()
}

// tell has nodes looked at of which there is news.
func (g *gossip) tell() {
	select {
	case g.wake <- struct{}{}:
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
