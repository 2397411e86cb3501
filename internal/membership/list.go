package membership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// State is how a node is, as this one sees it.
type State string

// The states. A node that was never heard of counts as dead.
const (
	Alive   State = "alive"
	Suspect State = "suspect" // it has not answered this node's last probes; others may reach it
	Dead    State = "dead"
	Left    State = "left" // it said that it stops
)

// Member is a node, as this one sees it.
type Member struct {
	State   State
	Since   time.Time     // of the state, by this node's clock
	Address string        // HOST:PORT
	RTT     time.Duration // of the last probe that it answered; 0: none yet, or this node
	// Answered is when it answered a probe last, or joined last; zero: neither was seen, or it is this node.
	Answered time.Time
	// Version is that of its program, and Commands the newest version of commands that it knows; "" and 0: it was not heard of yet.
	Version  string
	Commands int
}

// List is what this node sees of the others. Its methods may be called concurrently.
type List struct {
	config    Config
	transport *transport
	gossip    *memberlist.Memberlist
	end       context.CancelFunc
	running   sync.WaitGroup

	mu      sync.Mutex
	leaving bool
	known   map[string]*record // the members of the replicated state, without this node
}

// record is what is known of another node.
type record struct {
	Member
	leaving bool
}

// Open begins to gossip. The caller closes the List. After an error Packets and Streams are closed.
func Open(c Config) (*List, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	t, err := newTransport(c)
	if err != nil {
		return nil, errors.Join(err, c.Packets.Close(), c.Streams.Close())
	}
	ctx, end := context.WithCancel(context.Background())
	l := &List{config: c, transport: t, end: end, known: map[string]*record{}}
	l.refresh()
	if l.gossip, err = memberlist.Create(c.library(t, l)); err != nil {
		end()
		return nil, errors.Join(fmt.Errorf("membership: %w", err), t.Shutdown())
	}
	l.running.Go(func() { l.keep(ctx) })
	return l, nil
}

// Close ends the gossip at once: the others will find this node dead, unless it has left.
func (l *List) Close() error {
	l.end()
	err := l.gossip.Shutdown()
	l.running.Wait()
	return err
}

// Leave says to the others that this node stops, within about a second.
func (l *List) Leave() error {
	l.mu.Lock()
	l.leaving = true
	l.mu.Unlock()
	err := l.gossip.UpdateNode(leaveTimeout)
	return errors.Join(err, l.gossip.Leave(leaveTimeout))
}

// Dropped is how many datagrams were dropped.
func (l *List) Dropped() uint64 { return l.transport.dropped.Load() }

// Members are the members of the replicated state, this node too.
func (l *List) Members() map[string]Member {
	score := 1 + l.gossip.GetHealthScore()
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]Member, len(l.known)+1)
	out[l.config.Name] = Member{State: Alive, Version: l.config.Version, Commands: l.config.Commands, Address: l.config.Peers()[l.config.Name]}
	now, patience := time.Now(), l.patience(score)
	for name, r := range l.known {
		out[name] = r.seen(now, patience)
	}
	return out
}

// Member is another member of the replicated state; zero: there is none of that name.
func (l *List) Member(name string) Member {
	score := 1 + l.gossip.GetHealthScore()
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.known[name]
	if r == nil {
		return Member{}
	}
	return r.seen(time.Now(), l.patience(score))
}

// seen is the node as this one sees it, whose answer it waits for as long.
func (r *record) seen(now time.Time, patience time.Duration) Member {
	m := r.Member
	if m.State == Alive && now.Sub(r.Answered) > patience {
		m.State, m.Since = Suspect, r.Answered
	}
	return m
}

// patience is how long a node that is alive may leave this one without an answer: the library probes the others in turn, each at most two rounds
// after its last time, and takes score times as long where this node itself is slow. The caller holds mu.
func (l *List) patience(score int) time.Duration {
	alive := 0
	for _, r := range l.known {
		if r.State == Alive {
			alive++
		}
	}
	return l.config.ProbeEvery * time.Duration((2*alive+1)*score)
}

// keep follows the replicated state, and tries those who are dead: the library does not join again what a partition has parted.
func (l *List) keep(ctx context.Context) {
	for ctx.Err() == nil {
		l.refresh() //nolint:contextcheck // it asks nobody
		if dead := l.dead(); len(dead) > 0 {
			name := dead[rand.IntN(len(dead))] //nolint:gosec // no secret
			if _, err := l.gossip.Join([]string{name + "/" + net.JoinHostPort(nowhere.String(), strconv.Itoa(nowherePort))}); err != nil {
				l.config.Log.Debug("a dead node is not back", zap.String("member", name), zap.Error(err))
			}
		}
		t := time.NewTimer(keepEvery/2 + rand.N(keepEvery)) //nolint:gosec // no secret
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// refresh reads the replicated state.
func (l *List) refresh() {
	peers := l.config.Peers()
	l.transport.refresh(peers)
	fresh := map[string]bool{}
	l.mu.Lock()
	maps.DeleteFunc(l.known, func(name string, _ *record) bool { return peers[name] == "" })
	for name, address := range peers {
		if name != l.config.Name {
			fresh[name] = l.known[name] == nil
			l.record(name).Address = address
		}
	}
	l.mu.Unlock()
	if l.gossip == nil { // it begins
		return
	}
	for _, n := range l.gossip.Members() {
		if fresh[n.Name] { // the library knew it before it was a member: it was removed and has joined again, and will tell no event
			l.change(n, Alive)
		}
	}
}

// record returns what is known of a node. The caller holds mu.
func (l *List) record(name string) *record {
	r := l.known[name]
	if r == nil {
		r = &record{Member: Member{State: Dead, Since: time.Now()}}
		l.known[name] = r
	}
	return r
}

// dead are those who are to be tried, sorted.
func (l *List) dead() (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, r := range l.known {
		if r.State == Dead || r.State == Left {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// change records what the library says of a node, and tells it on.
func (l *List) change(n *memberlist.Node, state State) {
	name := n.Name
	if name == l.config.Name {
		return
	}
	says, err := decodeMeta(n.Meta)
	if err != nil {
		l.config.Log.Warn("a node of another version", zap.String("member", name), zap.Error(err))
	}
	peers := l.config.Peers()
	l.mu.Lock()
	if peers[name] == "" { // it was removed meanwhile
		l.mu.Unlock()
		return
	}
	r, now := l.record(name), time.Now()
	if state == Dead && r.leaving {
		state = Left
	}
	if state != r.State {
		r.State, r.Since = state, now
	}
	if state == Alive {
		r.Answered, r.leaving, r.Version, r.Commands = now, says.leaving, says.version, says.commands
	}
	m := r.Member
	l.mu.Unlock()
	l.config.Events.Changed(name, m)
}
