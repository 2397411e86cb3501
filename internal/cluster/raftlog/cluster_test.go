package raftlog

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// group is three logs that reach each other.
type group struct {
	dir        string
	voters     []raft.Server
	log        *zap.Logger // of all nodes; nil: none
	transports map[string]*raft.InmemTransport
	logs       map[string]*Log
}

func newGroup(t *testing.T) *group { return newLoggedGroup(t, nil) }

// newLoggedGroup is a group whose nodes log.
func newLoggedGroup(t *testing.T, log *zap.Logger) *group {
	t.Helper()
	c := &group{log: log, dir: t.TempDir(), transports: map[string]*raft.InmemTransport{}, logs: map[string]*Log{}}
	for _, id := range []string{"a", "b", "c"} {
		c.connect(id)
		c.voters = append(c.voters, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	for id := range c.transports {
		c.open(t, id)
	}
	return c
}

// connect gives a node a transport, which closing its log closes.
func (c *group) connect(id string) {
	address, transport := raft.NewInmemTransport(raft.ServerAddress(id))
	for other, peer := range c.transports {
		if other != id {
			peer.Connect(address, transport)
			transport.Connect(raft.ServerAddress(other), peer)
		}
	}
	c.transports[id] = transport
}

// open opens a node's log.
func (c *group) open(t *testing.T, id string) {
	t.Helper()
	l, err := Open(Config{
		Dir: filepath.Join(c.dir, id), NodeID: id, Transport: c.transports[id], Voters: c.voters, HeartbeatTimeout: 500 * time.Millisecond,
		SnapshotThreshold: 8, Logger: c.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.logs[id] = l
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestFollowerThatWasAwayGetsASnapshot, and its log goes on behind it: raft-wal takes no entry after a gap.
func TestFollowerThatWasAwayGetsASnapshot(t *testing.T) {
	c := newGroup(t)
	c.apply(t, &cluster.SubmitJob{Name: "first"})
	if err := c.logs["a"].WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	away := "a"
	if c.logs["a"].Leader() == away {
		away = "b"
	}
	waitFor(t, c.logs[away], "the first job", func(s *cluster.State) bool { return len(s.Jobs()) == 1 })
	if err := c.logs[away].Close(); err != nil {
		t.Fatal(err)
	}
	delete(c.logs, away)
	large := strings.Repeat("x", segmentBytes/4) // raft-wal still reads what was deleted of its last segment
	for range 12 {
		c.apply(t, &cluster.SubmitJob{Name: "while it was away", File: large})
	}
	for _, l := range c.logs {
		if err := l.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // and again from what it has on disk then
		c.connect(away)
		c.open(t, away)
		c.apply(t, &cluster.SubmitJob{Name: "after it"})
		jobs := 0
		for _, l := range c.logs {
			jobs = max(jobs, len(l.State().Jobs()))
		}
		waitFor(t, c.logs[away], "all jobs", func(s *cluster.State) bool { return len(s.Jobs()) >= jobs })
		first, err := c.logs[away].store.FirstIndex()
		if err := errors.Join(err, c.logs[away].Err(), c.logs[away].Close()); err != nil || first < 10 {
			t.Fatalf("its log begins at entry %d: %v", first, err)
		}
		delete(c.logs, away)
	}
}

// apply proposes at whoever leads until it is accepted.
func (c *group) apply(t *testing.T, command cluster.Command) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		for _, l := range c.logs {
			if err := l.WaitReady(ctx); err != nil {
				continue // it may have lost the lead
			}
			_, err := l.Apply(ctx, command)
			if err == nil {
				return
			}
			if !errors.Is(err, ErrNotLeader) && !errors.Is(err, raft.ErrLeadershipLost) {
				t.Fatal(err)
			}
		}
	}
	t.Fatal("nobody took the command")
}

// refusing waits until all but one refuse a command and say that this one leads, which it returns: the lead may change meanwhile.
func (c *group) refusing(t *testing.T) (leader string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for refused := map[string]error{}; len(refused) < len(c.logs)-1; {
		if ctx.Err() != nil {
			t.Fatalf("%s leads, and others say %v", leader, refused)
		}
		if err := c.logs["a"].WaitReady(ctx); err != nil {
			continue // it may have lost the lead
		}
		clear(refused)
		leader = c.logs["a"].Leader()
		for id, l := range c.logs {
			_, err := l.Apply(ctx, &cluster.BeginGeneration{Job: "none", Placement: []byte("1")}) // which changes nothing where it is accepted
			if leader != "" && errors.Is(err, ErrNotLeader) && strings.Contains(err.Error(), "the leader is "+leader) {
				refused[id] = err
			}
		}
	}
	return leader
}

// waitFor waits until a node's state satisfies a condition.
func waitFor(t *testing.T, l *Log, what string, done func(*cluster.State) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		state, changed := l.Changed()
		if done(state) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("waited for %s: %v", what, ctx.Err())
		}
	}
}

// TestClusterKeepsWhatWasApplied: every node gets the same state, a node that does not lead says who does, and when the leader
// goes nothing that was applied is lost.
func TestClusterKeepsWhatWasApplied(t *testing.T) {
	c := newGroup(t)
	c.apply(t, &cluster.SubmitJob{Name: "first"})
	c.apply(t, &cluster.BeginGeneration{Job: "1", Placement: []byte("1"), Reason: "x"})
	for id, l := range c.logs {
		waitFor(t, l, id+" to see the generation", func(s *cluster.State) bool {
			j, err := s.Job("1")
			return err == nil && j.Generation == 1
		})
	}
	leader := c.refusing(t)
	if err := c.logs[leader].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.logs[leader].Apply(t.Context(), &cluster.SubmitJob{}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	delete(c.logs, leader)
	c.apply(t, &cluster.SubmitJob{Name: "second"})
	var states [][]byte
	for id, l := range c.logs {
		waitFor(t, l, id+" to see the second job", func(s *cluster.State) bool { return len(s.Jobs()) == 2 })
		states = append(states, bytesOf(t, l.State()))
	}
	if !bytes.Equal(states[0], states[1]) {
		t.Errorf("states differ:\n%s\n%s", states[0], states[1])
	}
}

// TestApplyEndsWithItsContext, and a command that cannot be encoded is not proposed.
func TestApplyEndsWithItsContext(t *testing.T) {
	l := openLone(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Apply(ctx, &cluster.SubmitJob{Name: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := l.Apply(t.Context(), &cluster.BeginGeneration{Job: "1", Placement: []byte("{")}); err == nil || !strings.Contains(err.Error(), "begin_generation") {
		t.Errorf("error %v", err)
	}
	if n := len(l.State().Jobs()); n != 0 {
		t.Errorf("%d jobs", n)
	}
}

// TestRaftConfigNamesWhatIsWrong.
func TestRaftConfigNamesWhatIsWrong(t *testing.T) {
	for _, c := range []Config{
		{NodeID: "a"},
		{Dir: "x"},
		{Dir: "x", NodeID: "a", HeartbeatTimeout: time.Millisecond},
		{Dir: "x", NodeID: "a", Voters: []raft.Server{{ID: "a"}}},
	} {
		if _, err := Open(c); err == nil || !strings.HasPrefix(err.Error(), "raft: ") {
			t.Errorf("%+v: error %v", c, err)
		}
	}
}
