package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// The times of the failure detector. Decision 0097 argues them: a node that is killed is dead within about 2 s, and one that is stopped for a second
// is not.
const (
	probeEvery    = 200 * time.Millisecond // one other node; after half of it others are asked to probe it, and a stream is tried
	suspicion     = 7                      // probe intervals from suspect to dead, at least 1.4 s
	gossipEvery   = 50 * time.Millisecond
	syncEvery     = 10 * time.Second // the whole list with one other node
	streamTimeout = 2 * time.Second
	leaveTimeout  = 500 * time.Millisecond // of each of the two messages
	keepEvery     = time.Second            // peers are read, and one of the dead is tried
	resolveAgain  = time.Minute            // names of hosts
)

// DeadAfter is how long a member may not answer probes, at least, before the others take it for dead.
const DeadAfter = suspicion * probeEvery

// Config configures a List.
type Config struct {
	// Name is this node's, as certificates allow it.
	Name string
	// Version is that of this program, at most 255 bytes, and Commands the newest version of commands that it knows, at most 65,535. The others are told.
	Version  string
	Commands int
	// Cluster is the cluster's id, and Key, 16, 24 or 32 bytes, that of its datagrams. Required.
	Cluster string
	Key     []byte
	// Oldest and Newest are the versions of the protocols between nodes that this program speaks, at most 63, and at most three newer ones. Datagrams of
	// nodes that speak none of these are dropped: they are dead for this one. Default 1 and 1.
	Oldest, Newest int
	// Packets sends and receives datagrams, and Streams accepts the connections of nodes, whose certificates were checked. The List closes both. Required.
	Packets net.PacketConn
	Streams net.Listener
	// Dial connects to a node by its name. Required.
	Dial func(ctx context.Context, name string) (net.Conn, error)
	// Peers are the members by name, HOST:PORT, with or without this node. It is called concurrently, with each thing that is heard of a node, and does not
	// block. The List does not change what it returns. Required.
	Peers func() map[string]string
	// Resolve finds where datagrams for HOST:PORT go. Default: UDP and the host's resolver.
	Resolve func(ctx context.Context, address string) (net.Addr, error)
	// ProbeEvery is how often one other node is probed, and how long that one has for its answer. A node that cannot count on its turn, as where very many share
	// a host, probes more rarely, and takes nobody for dead because it is slow itself. Default 200 ms.
	ProbeEvery time.Duration
	// Events are told what happens.
	Events Events
	// Log gets the library's own log, for the most part at debug level. Default: none.
	Log *zap.Logger
}

// Events are told what happens. They are called concurrently, in order for a node, and neither block nor call the List. Each may be nil.
type Events struct {
	// Changed is told of a node that joins, leaves or dies, or says something else of itself.
	Changed func(name string, m Member)
	// Dropped is told of a datagram that is not of this cluster, or is damaged.
	Dropped func(from net.Addr, err error)
}

func (c Config) withDefaults() Config {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	c.Oldest = cmp.Or(c.Oldest, 1)
	c.Newest = cmp.Or(c.Newest, c.Oldest)
	c.ProbeEvery = cmp.Or(c.ProbeEvery, probeEvery)
	if c.Resolve == nil {
		c.Resolve = resolveUDP
	}
	if c.Events.Changed == nil {
		c.Events.Changed = func(string, Member) {}
	}
	if c.Events.Dropped == nil {
		c.Events.Dropped = func(net.Addr, error) {}
	}
	return c
}

// Validate reports the first field that does not fit.
func (c Config) Validate() error {
	switch {
	case c.Name == "" || c.Cluster == "":
		return fmt.Errorf("membership: node %q of cluster %q: both must be given", c.Name, c.Cluster)
	case c.Packets == nil || c.Streams == nil || c.Dial == nil || c.Peers == nil:
		return errors.New("membership: Packets, Streams, Dial and Peers are required")
	case c.Oldest < 1 || c.Oldest > maxOldest || c.Newest < c.Oldest || c.Newest > c.Oldest+maxNewer:
		return fmt.Errorf("membership: versions %d to %d: want 1 to %d, and at most %d newer ones", c.Oldest, c.Newest, maxOldest, maxNewer)
	case c.ProbeEvery < 0:
		return fmt.Errorf("membership: a probe every %v: that must be positive", c.ProbeEvery)
	case len(c.Version) > maxVersionBytes || c.Commands < 0 || c.Commands > maxCommands:
		return fmt.Errorf("membership: a version of %d bytes that knows commands up to %d: want at most %d, and 0 to %d", len(c.Version), c.Commands, maxVersionBytes, maxCommands)
	}
	return nil
}

// library is memberlist's form of the settings.
func (c Config) library(t *transport, l *List) *memberlist.Config {
	m := memberlist.DefaultLANConfig()
	m.Name, m.Transport, m.RequireNodeNames = c.Name, t, true
	m.ProbeInterval, m.ProbeTimeout = c.ProbeEvery, c.ProbeEvery/2
	m.SuspicionMult, m.SuspicionMaxTimeoutMult = suspicion, 2
	m.GossipInterval, m.PushPullInterval, m.TCPTimeout = gossipEvery, syncEvery, streamTimeout
	m.UDPBufferSize = maxPacket - sealBytes
	m.EnableCompression = false // a few hundred bytes
	m.Delegate, m.Events, m.Ping, m.Alive = l, (*events)(l), l, l
	m.LogOutput, m.Logger = io.Discard, nil
	if c.Log.Core().Enabled(zap.DebugLevel) {
		m.LogOutput = logWriter{c.Log.Named("gossip")}
	}
	return m
}

// resolveUDP finds the address of a HOST:PORT.
func resolveUDP(ctx context.Context, address string) (net.Addr, error) {
	if at, err := netip.ParseAddrPort(address); err == nil {
		return net.UDPAddrFromAddrPort(at), nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
	if err != nil {
		return nil, err
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("host %s has no address", host)
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(all[0].Unmap(), uint16(number))), nil //nolint:gosec // a port
}
