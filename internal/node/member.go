package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/agent/remote"
	"github.com/avgpipe/avgpipe/internal/audit"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/mux"
	"github.com/avgpipe/avgpipe/internal/pki"
	"github.com/avgpipe/avgpipe/internal/server"
)

// pkiDir holds what makes a node a member of a cluster.
func pkiDir(state string) string { return filepath.Join(state, "pki") }

// member is what a node has that is one of several.
type member struct {
	dir       string // of the state
	identity  *pki.Identity
	mux       *mux.Mux
	gossip    *gossip
	advertise string
	raft      atomic.Pointer[raftlog.Log]
	refused   refusals
	door      *doorbook

	mu      sync.Mutex
	clients map[string]*client        // by node
	agents  map[string]*remote.Client // by node
}

var errNoNode = errors.New("the connection is of no node")

// client asks another node.
type client struct {
	address   string
	api, node *http.Transport
}

// openMember listens for the other nodes; nil for a node that is alone.
func openMember(ctx context.Context, c Config, book *audit.Log) (*member, error) {
	if !pki.IsMember(pkiDir(c.StateDir)) {
		if c.Listen != "" {
			if err := checkAlone(c.StateDir); err != nil {
				return nil, err
			}
			return nil, &KeyError{"listen", fmt.Errorf("the state directory %s belongs to no cluster: avgpiped init begins one, avgpiped join makes this node a member; or remove listen", c.StateDir)}
		}
		return nil, nil //nolint:nilnil // as documented
	}
	if c.Listen == "" {
		return nil, &KeyError{"listen", fmt.Errorf("the state directory %s belongs to a node of a cluster: set listen to where the others reach it, such as 0.0.0.0:7700", c.StateDir)}
	}
	identity, err := pki.Open(pkiDir(c.StateDir))
	if err != nil {
		return nil, err
	}
	if c.NodeID != "" && c.NodeID != identity.Name() {
		return nil, renamed(c.StateDir, identity.Name(), c.NodeID)
	}
	m := &member{dir: pkiDir(c.StateDir), identity: identity, clients: map[string]*client{}, agents: map[string]*remote.Client{}, door: &doorbook{write: book.Write}}
	identity.Speak(c.Protocols)
	m.mux, err = mux.Listen(ctx, c.Listen, mux.Config{TLS: identity.ServerTLS(), Log: c.Log, Versions: c.Protocols, OnRefused: m.door.refused})
	if err != nil {
		return nil, portError(c.Listen, err, book)
	}
	if m.gossip, err = openGossip(ctx, m.mux.Addr()); err != nil {
		return nil, errors.Join(portError(c.Listen, err, book), m.mux.Close())
	}
	if m.advertise = c.Advertise; m.advertise == "" {
		m.advertise = m.mux.Addr().String()
	}
	if host, _, err := net.SplitHostPort(m.advertise); err != nil || net.ParseIP(host).IsUnspecified() {
		return nil, errors.Join(&KeyError{"advertise", fmt.Errorf("others cannot reach this node at %s: set advertise to the host's address and the port, such as 192.0.2.7:7700", m.advertise)}, m.gossip.close(), m.mux.Close())
	}
	return m, nil
}

// portError is why the port of nodes cannot be opened, which is written down. One that is in use may become free, as where an earlier daemon ends: the
// daemon is started again.
func portError(address string, err error, book *audit.Log) error {
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w: another daemon, or another program, has the port: stop that one, or set listen to another", err)
	}
	book.Write(audit.Record{Operation: "listen", Object: address, Error: err.Error()})
	return keyError("listen", err, unix.EADDRNOTAVAIL, unix.EACCES)
}

// close ends what the node listens to and asks.
func (m *member) close() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.clients {
		c.api.CloseIdleConnections()
		c.node.CloseIdleConnections()
	}
	for _, a := range m.agents {
		a.Close()
	}
	return errors.Join(m.gossip.close(), m.mux.Close())
}

// begun reports whether this node began the cluster, rather than joined it.
func (m *member) begun() bool {
	_, err := os.Lstat(beginPath(m.dir))
	return err == nil
}

// configure has Raft speak to the other nodes.
func (m *member) configure(c *raftlog.Config, log *zap.Logger) {
	version := c.Version
	c.Oldest = func() int {
		raft := m.raft.Load()
		if raft == nil {
			return cluster.CommandVersion
		}
		return oldestCommands(raft.State().Nodes(), m.gossip.members(), version)
	}
	c.Joins = !m.begun()
	c.Transport = raftlog.NewTransport(m.mux.Listener(mux.ProtocolRaft), m.advertise, func(ctx context.Context, address string) (net.Conn, error) {
		return m.dial(ctx, mux.ProtocolRaft, m.nameAt(address), address)
	}, log)
}

// follow has the replicated state say who is a member.
func (m *member) follow(raft *raftlog.Log) {
	m.raft.Store(raft)
	m.identity.SetMember(func(name string, key []byte) error {
		s := raft.State()
		if s.Authority() == nil {
			return nil // it has no state yet
		}
		n, err := s.Node(name)
		if err == nil && !bytes.Equal(n.Key, key) {
			err = fmt.Errorf("node %s has another key", name)
		}
		return err
	})
}

// nameAt is the node with an address; empty: it is not known yet, so that any node may answer.
func (m *member) nameAt(address string) string {
	if raft := m.raft.Load(); raft != nil {
		for _, n := range raft.State().Nodes() {
			if n.Address == address {
				return n.Name
			}
		}
	}
	return ""
}

// to returns what asks another node.
func (m *member) to(name string) (*client, error) {
	n, err := m.raft.Load().State().Node(name)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clients[name]
	if c != nil && c.address == n.Address {
		return c, nil
	}
	if c != nil {
		c.api.CloseIdleConnections()
		c.node.CloseIdleConnections()
	}
	c = &client{address: n.Address}
	dial := func(protocol string) func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			conn, err := m.dial(ctx, protocol, name, c.address)
			if err != nil {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
			}
			return conn, nil
		}
	}
	c.api = &http.Transport{DialTLSContext: dial("http/1.1"), IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 8}
	c.node = &http.Transport{DialContext: dial(mux.ProtocolNode), IdleConnTimeout: time.Minute, ResponseHeaderTimeout: askTimeout}
	m.clients[name] = c
	return c, nil
}

const (
	dialTimeout = 3 * time.Second
	askTimeout  = 10 * time.Second
	lookEvery   = 50 * time.Millisecond
)

// Leads implements server.Cluster.
func (n *node) Leads() bool { return n.leads.Load() }

// Leader implements server.Cluster.
func (n *node) Leader(ctx context.Context) (server.Leader, error) {
	why := n.leaderless()
	for {
		switch name := n.raft.Leader(); {
		case n.Leads():
			return server.Leader{Name: n.id}, nil
		case name == n.id:
			why = errors.New("this node has begun to lead and is not ready yet")
		case name != "":
			c, err := n.member.to(name)
			if err == nil {
				return server.Leader{Name: name, Transport: c.api}, nil
			}
			why = err
		case errors.Is(why, server.ErrNotMember):
			return server.Leader{}, why
		}
		if sleep(ctx, lookEvery); ctx.Err() != nil {
			return server.Leader{}, why
		}
	}
}

// Left implements server.Cluster.
func (n *node) Left(ctx context.Context, name string) {
	for ctx.Err() == nil && n.raft.Leader() == name {
		sleep(ctx, lookEvery)
	}
}

// errNoContact is why nobody can say how old the state of a node is.
var errNoContact = errors.New("this node has not heard from a node that leads since its daemon started, so nobody knows how old what it has is")

// Age implements server.Cluster.
func (n *node) Age() (time.Duration, error) {
	age, ok := n.raft.StateAge()
	if !ok {
		return 0, errNoContact
	}
	return age, nil
}

// Current implements server.Cluster.
func (n *node) Current(ctx context.Context) error {
	if err := n.raft.Verify(ctx); err != nil {
		return err
	}
	if term := n.raft.Term(); !n.Leads() || term != n.ledTerm.Load() { // it led, lost that, and leads anew
		return fmt.Errorf("this node has begun to lead in term %d and is not ready yet", term)
	}
	return nil
}
