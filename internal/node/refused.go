package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/pki"
)

// standingEvery is how often a node without a leader looks why.
const standingEvery = 5 * time.Second

// refusals are the nodes that refuse this node's certificate. The zero value is ready to use.
type refusals struct {
	mu sync.Mutex
	by map[string]bool // by address: names are known where the state is
}

// note records what a read from the node at an address says: an error, or nil where it has answered.
func (r *refusals) note(address string, err error) {
	refused := pki.Refused(err)
	if err != nil && !refused {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[string]bool{}
	}
	if refused {
		r.by[address] = true
	} else {
		delete(r.by, address)
	}
}

// addresses are those of the nodes that refuse this one, sorted.
func (r *refusals) addresses() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.by))
}

// heeded is a connection to a node that may refuse this one: with TLS 1.3, whoever connects learns it by its first read.
type heeded struct {
	net.Conn
	note func(error)
	once sync.Once
}

func (c *heeded) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 || err != nil {
		c.once.Do(func() { c.note(err) })
	}
	return n, err
}

// ConnectionState is that of TLS.
func (c *heeded) ConnectionState() tls.ConnectionState {
	return c.Conn.(*tls.Conn).ConnectionState() //nolint:errcheck,forcetypeassert // dial made it
}

// dial connects to another node for a protocol.
func (m *member) dial(ctx context.Context, protocol, name, address string) (net.Conn, error) {
	c, err := m.identity.Dial(ctx, protocol, name, address)
	if err != nil {
		return nil, err
	}
	return &heeded{Conn: c, note: func(err error) { m.refused.note(address, err) }}, nil
}

// leaderless says why this node knows of no node that leads.
func (n *node) leaderless() error {
	var members []raftlog.Member
	if n.member != nil {
		members, _ = n.raft.Members() // it fails where the log is closed
	}
	return standing(n.id, n.config.StateDir, members, n.refusedBy())
}

func (n *node) refusedBy() []string {
	if n.member == nil {
		return nil
	}
	return n.member.refused.addresses()
}

// standing says why a node knows of no node that leads, by the members of Raft as it knows them and by the nodes that refuse it.
func standing(id, state string, members []raftlog.Member, refusing []string) error {
	again := fmt.Sprintf("To make this host a member again, stop the daemon, move %s away and let it join with another token", state)
	if len(members) > 0 && !slices.ContainsFunc(members, func(m raftlog.Member) bool { return m.Name == id }) {
		var names []string
		for _, m := range members {
			names = append(names, m.Name)
		}
		return fmt.Errorf("node %s was removed from the cluster, whose nodes are %s: ask one of them. %s", id, strings.Join(names, ", "), again)
	}
	if len(refusing) > 0 {
		return fmt.Errorf("no node leads, and the certificate of node %s is refused by %s, whose audit.log says why: it was removed from the cluster while it was away, or another host has its name. %s",
			id, strings.Join(refusing, ", "), again)
	}
	return errors.New("no node leads")
}

// watchStanding logs it once where this node is not a member any more, until ctx ends.
func (n *node) watchStanding(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		why := ""
		if n.raft.Leader() == "" && n.raft.Age() > contactBound {
			why = n.leaderless().Error()
		}
		if why != said && why != "" {
			n.log.Error(why, zap.Duration("for", n.raft.Age().Round(time.Second)))
		}
		said = why
		sleep(ctx, standingEvery)
	}
}
