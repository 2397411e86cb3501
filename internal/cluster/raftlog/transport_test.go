package raftlog

import (
	"cmp"
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// overTCP opens a new log whose node is reached over TCP.
func overTCP(t *testing.T, name string, joins bool) *Log {
	t.Helper()
	return openTCP(t, Config{Dir: filepath.Join(t.TempDir(), name), NodeID: name, Joins: joins})
}

// openTCP opens a log whose node is reached over TCP, at a port of its own.
func openTCP(t *testing.T, config Config) *Log {
	t.Helper()
	return openDialing(t, config, func(ctx context.Context, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	})
}

// openDialing opens such a log that dials in a way of its own.
func openDialing(t *testing.T, config Config, dial func(ctx context.Context, address string) (net.Conn, error)) *Log {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config.HeartbeatTimeout = cmp.Or(config.HeartbeatTimeout, 300*time.Millisecond)
	config.Transport = NewTransport(listener, listener.Addr().String(), dial, zap.NewNop())
	l, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func address(l *Log) string { return string(l.config.Transport.LocalAddr()) }

func TestNodesJoinVoteAndTakeOver(t *testing.T) {
	t.Parallel()
	a := overTCP(t, "a", false)
	if err := a.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !<-a.Leadership() {
		t.Fatal("the first node does not lead")
	}
	logs := map[string]*Log{"b": overTCP(t, "b", true), "c": overTCP(t, "c", true)}
	for _, name := range []string{"b", "c"} {
		if err := a.AddNode(t.Context(), name, address(logs[name]), false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Apply(t.Context(), &cluster.SubmitJob{Name: "first"}); err != nil {
		t.Fatal(err)
	}
	members, err := a.Members()
	if err != nil || len(members) != 3 || !slices.Equal(Voters(members), []string{"a"}) {
		t.Fatalf("members %+v, %v", members, err)
	}
	for name, l := range logs {
		waitFor(t, l, "the first job", func(s *cluster.State) bool { return len(s.Jobs()) == 1 })
		if l.Age() > time.Minute || l.Leader() != "a" {
			t.Errorf("%s: age %v, leader %q", name, l.Age(), l.Leader())
		}
		if err := a.AddNode(t.Context(), name, address(l), true); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	next := leads(t, logs["b"], logs["c"])
	if err := next.Leading(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := next.Apply(t.Context(), &cluster.SubmitJob{Name: "second"}); err != nil {
		t.Fatal(err)
	}
}

// leads waits until one of two leads, and returns it.
func leads(t *testing.T, one, other *Log) *Log {
	t.Helper()
	select {
	case <-one.Leadership():
		return one
	case <-other.Leadership():
		return other
	case <-time.After(time.Minute):
		t.Fatalf("nobody leads: %v, %v", one.raft.Stats(), other.raft.Stats())
		return nil
	}
}

// gate holds what goes through it while it is shut.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // nil: it is open
}

// shut shuts it and returns what opens it.
func (g *gate) shut() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ch := make(chan struct{})
	g.open = ch
	return func() { close(ch) }
}

// pass waits until the gate is open.
func (g *gate) pass() {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	if open != nil {
		<-open
	}
}

// gated is a connection whose messages go through a gate.
type gated struct {
	net.Conn
	gate *gate
}

func (g *gated) Write(p []byte) (int, error) {
	g.gate.pass()
	return g.Conn.Write(p)
}

// TestANewVoterIsAddedOnceAllVotersKnow: a majority had the entry with the leader and one other, which suffices to commit it. When the leader was lost then, the third never gave its vote
// to the second, of which it did not know that it votes, and nobody ever led.
func TestANewVoterIsAddedOnceAllVotersKnow(t *testing.T) {
	t.Parallel()
	for _, late := range []string{"b", "c"} {
		t.Run(late, func(t *testing.T) {
			t.Parallel()
			const heartbeat = 2 * time.Second // of a busy machine too
			logs := map[string]*Log{}
			for _, name := range []string{"b", "c"} {
				logs[name] = openTCP(t, Config{Dir: filepath.Join(t.TempDir(), name), NodeID: name, Joins: true, HeartbeatTimeout: heartbeat})
			}
			var slow gate
			dial := func(ctx context.Context, to string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
				if err != nil || to != address(logs[late]) {
					return conn, err
				}
				return &gated{conn, &slow}, nil
			}
			a := openDialing(t, Config{Dir: filepath.Join(t.TempDir(), "a"), NodeID: "a", HeartbeatTimeout: heartbeat}, dial)
			if err := a.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, voter := range []bool{false, true} {
				for _, name := range []string{"b", "c"} {
					if voter && name == "c" {
						time.AfterFunc(heartbeat/4, slow.shut()) // the leader leads on for twice as long
					}
					if err := a.AddNode(t.Context(), name, address(logs[name]), voter); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			leads(t, logs["b"], logs["c"])
		})
	}
}

// TestANodeWhoseVoteIsOfNoUseYetIsSaid: it votes, and the voters that do not know of it are named.
func TestANodeWhoseVoteIsOfNoUseYetIsSaid(t *testing.T) {
	t.Parallel()
	b := overTCP(t, "b", true)
	a := overTCP(t, "a", false)
	if err := a.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.AddNode(t.Context(), "b", address(b), true); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	term := a.Term()
	if err := a.known(ctx, "add node b", "b", term, 1<<40); !errors.Is(err, errUnheard) || a.Term() == term && !strings.Contains(err.Error(), "[b] do not know of it: context deadline exceeded") {
		t.Errorf("a voter that has not got so far: %v", err)
	}
	if err := a.known(t.Context(), "add node b", "b", term-1, 1<<40); !errors.Is(err, errUnheard) || !strings.Contains(err.Error(), "leads no more") {
		t.Errorf("another term: %v", err)
	}
}
