package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/pki"
	"github.com/avgpipe/avgpipe/internal/server"
)

// standingEvery is how often a node without a leader looks why.
const standingEvery = 5 * time.Second

// refusals are the nodes that refuse this one. The zero value is ready to use.
type refusals struct {
	mu sync.Mutex
	by map[string]why // by address: names are known where the state is
}

// why is what a node refuses this one for.
type why int

const (
	itsCertificate why = iota + 1
	itsVersion         // no version of the protocols between nodes is spoken by both
)

// note records what a connection to the node at an address says: an error, or nil where it has answered.
func (r *refusals) note(address string, err error) {
	because := why(0)
	switch {
	case pki.Refused(err):
		because = itsCertificate
	case pki.Foreign(err):
		because = itsVersion
	case err != nil:
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[string]why{}
	}
	if because == 0 {
		delete(r.by, address)
	} else {
		r.by[address] = because
	}
}

// addresses are those of the nodes that refuse this one for something, sorted.
func (r *refusals) addresses(because why) (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for address, w := range r.by {
		if w == because {
			all = append(all, address)
		}
	}
	slices.Sort(all)
	return all
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
		m.refused.note(address, err)
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
	return standing(n.id, n.config.StateDir, members, n.refusedBy(itsCertificate), n.refusedBy(itsVersion))
}

func (n *node) refusedBy(because why) []string {
	if n.member == nil {
		return nil
	}
	return n.member.refused.addresses(because)
}

// removedError says that this node was removed from the cluster, as far as it knows.
type removedError struct{ text string }

func (e *removedError) Error() string { return e.text }

func (e *removedError) Unwrap() error { return server.ErrNotMember }

// standing says why a node knows of no node that leads, by the members of Raft as it knows them and by the nodes that refuse it.
func standing(id, state string, members []raftlog.Member, refusing, foreign []string) error {
	again := fmt.Sprintf("To make this host a member again, stop the daemon, move %s away and let it join with another token", state)
	if len(members) > 0 && !slices.ContainsFunc(members, func(m raftlog.Member) bool { return m.Name == id }) {
		var names []string
		for _, m := range members {
			names = append(names, m.Name)
		}
		return &removedError{fmt.Sprintf("node %s was removed from the cluster, whose nodes are %s: ask one of them. %s", id, strings.Join(names, ", "), again)}
	}
	if len(refusing) > 0 {
		return fmt.Errorf("no node leads, and the certificate of node %s is refused by %s, whose audit.log says why: it was removed from the cluster while it was away, or another host has its name. %s",
			id, strings.Join(refusing, ", "), again)
	}
	if len(foreign) > 0 {
		return fmt.Errorf("no node leads, and %s run another major version of avgpiped than node %s: they speak none of the versions of the protocols between nodes that it speaks. "+
			"Install the version that they run, or one at most one before or after it, and start the daemon; nothing of the state directory was changed", strings.Join(foreign, ", "), id)
	}
	return errLeaderless
}

// errLeaderless is why a node knows of no node that leads where it knows of no other reason.
var errLeaderless = errors.New("no node leads")

// leaderlessAlarm is how long that passes by itself as a rule: an election takes seconds, a network that is mended a little longer.
const leaderlessAlarm = time.Minute

// vigil is how long a node has known of no node that leads, and what it has said of that.
type vigil struct {
	since, looked time.Time
	said          string
	level         zapcore.Level // of what was said
}

// look notes why no node leads; nil: one does. It returns what is to be logged, if anything, and at which level: an error is for a person. A daemon that stood still was not without a
// leader for that time.
func (v *vigil) look(why error, now time.Time) (say bool, level zapcore.Level, lasts time.Duration) {
	if why == nil {
		*v = vigil{}
		return false, 0, 0
	}
	if v.since.IsZero() || now.Sub(v.looked) > 2*standingEvery {
		v.since = now
	}
	v.looked, lasts = now, now.Sub(v.since)
	switch level = zapcore.ErrorLevel; {
	case errors.Is(why, errLeaderless) && lasts < leaderlessAlarm:
		level = zapcore.WarnLevel
		if lasts < contactBound {
			return false, level, lasts
		}
	}
	if v.said == why.Error() && v.level >= level {
		return false, level, lasts
	}
	v.said, v.level = why.Error(), level
	return true, level, lasts
}

// watchStanding logs it where this node knows of no node that leads, or is not a member any more, until ctx ends.
func (n *node) watchStanding(ctx context.Context) {
	for v := (vigil{}); ctx.Err() == nil; sleep(ctx, standingEvery) {
		why := error(nil)
		if n.raft.Leader() == "" && n.raft.Age() > contactBound {
			why = n.leaderless()
		}
		if say, level, lasts := v.look(why, time.Now()); say {
			n.log.Log(level, why.Error(), zap.Duration("for", lasts.Round(time.Second)))
		}
	}
}
