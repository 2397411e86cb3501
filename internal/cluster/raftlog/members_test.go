package raftlog

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// TestLoneNodeBecomesTheFirstOfSeveral: the log that a lone node wrote goes on over a network, and so at another address; those who follow find the
// node there.
func TestLoneNodeBecomesTheFirstOfSeveral(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "raft")
	lone := openLone(t, dir)
	if _, err := lone.Apply(t.Context(), &cluster.SubmitJob{Name: "alone"}); err != nil {
		t.Fatal(err)
	}
	if err := lone.Close(); err != nil {
		t.Fatal(err)
	}
	b := overTCP(t, "b", true)
	for _, jobs := range []int{2, 3} {
		a := openTCP(t, Config{Dir: dir, NodeID: "a", Existing: true})
		if err := a.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := a.AddNode(t.Context(), "a", address(a), true); err != nil {
			t.Fatal(err)
		}
		if err := a.AddNode(t.Context(), "b", address(b), false); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Apply(t.Context(), &cluster.SubmitJob{Name: "one of two"}); err != nil {
			t.Fatal(err)
		}
		waitFor(t, b, "the jobs", func(s *cluster.State) bool { return len(s.Jobs()) == jobs })
		members, err := a.Members()
		if err != nil || len(members) != 2 || members[0] != (Member{"a", address(a), true}) || members[1] != (Member{"b", address(b), false}) {
			t.Fatalf("members %+v: %v", members, err)
		}
		if err := a.Verify(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := a.RemoveNode(t.Context(), "a"); !errors.Is(err, ErrOnlyVoter) {
			t.Fatalf("the only voter was removed: %v", err)
		}
		if err := b.Verify(t.Context()); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("a node that follows says that it leads: %v", err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLeaderThatIsRemovedHandsOverFirst.
func TestLeaderThatIsRemovedHandsOverFirst(t *testing.T) {
	c := newGroup(t)
	gone := c.refusing(t)
	for t.Context().Err() == nil {
		leader := c.refusing(t)
		err := c.logs[leader].RemoveNode(t.Context(), gone)
		if err == nil && leader != gone {
			break
		}
		if leader == gone && !errors.Is(err, ErrNotLeader) {
			t.Logf("hand over: %v", err) // it may have lost the lead, or nobody could take it yet
		}
	}
	rest := &group{logs: map[string]*Log{}}
	for id, l := range c.logs {
		if id != gone {
			rest.logs[id] = l
		}
	}
	rest.apply(t, &cluster.SubmitJob{Name: "without it"})
	for id, l := range rest.logs {
		waitFor(t, l, id+" to have the job", func(s *cluster.State) bool { return len(s.Jobs()) == 1 })
	}
}

// TestCommandThatAMemberDoesNotKnowIsNotProposed.
func TestCommandThatAMemberDoesNotKnowIsNotProposed(t *testing.T) {
	l, err := Open(Config{Dir: t.TempDir(), NodeID: "a", Oldest: func() int { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "x"}); !errors.Is(err, ErrOldMember) {
		t.Errorf("error %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
