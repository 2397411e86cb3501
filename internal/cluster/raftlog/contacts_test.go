package raftlog

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// TestAStateIsAsOldAsWhatItHas: it is of when the leader said last what is committed, and all of that is here.
func TestAStateIsAsOldAsWhatItHas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, has := newContacts(), uint64(0)
		c.follow(func(commit uint64) bool { return has >= commit })
		hear := func(term, previous, of, commit uint64, entries ...*raft.Log) {
			t.Helper()
			time.Sleep(time.Second)
			c.hear(&raft.AppendEntriesRequest{Term: term, PrevLogEntry: previous, PrevLogTerm: of, LeaderCommitIndex: commit, Entries: entries})
		}
		want := func(what string, at time.Time) {
			t.Helper()
			if got := c.agreedAt(); !got.Equal(at) {
				t.Errorf("%s: of %v, want %v", what, got, at)
			}
		}
		want("it has heard nothing", time.Time{})
		hear(1, 9, 1, 9)
		first := time.Now()
		want("what is committed is not here", time.Time{})
		hear(1, 9, 1, 10)
		has = 9
		want("the first message is caught up with", first)
		has = 10
		want("the second came while the first was not, and does not count", first)
		hear(1, 10, 1, 10)
		third := time.Now()
		want("all is here", third)
		hear(1, 0, 0, 0)
		want("a heartbeat", third)
		hear(2, 12, 1, 10)
		want("a new leader does not know what the old one committed", third)
		hear(2, 12, 1, 13, &raft.Log{Index: 13, Term: 2})
		fourth := time.Now()
		has = 13
		want("it does once an entry of its own is committed", fourth)
		hear(1, 13, 1, 13)
		want("the leader of before", fourth)
		hear(2, 14, 2, 13)
		want("entries that are not committed yet", time.Now())
	})
}

// TestOnlyAnswersFromAfterwardsSayThatANodeLeads: one that stood still finds answers to what it asked before.
func TestOnlyAnswersFromAfterwardsSayThatANodeLeads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, voters, asked := newContacts(), []raft.ServerID{"b", "c"}, time.Now()
		time.Sleep(time.Minute)
		since := time.Now()
		for _, step := range []struct {
			from raft.ServerID
			term uint64
			at   time.Time
			want int
		}{{"b", 3, asked, 0}, {"c", 2, since, 0}, {"d", 3, since, 0}, {"b", 3, since, 1}, {"c", 3, since.Add(1), 2}} {
			c.answer(step.from, step.term, step.at, 0)
			if got, _ := c.followed(voters, 3, since); got != step.want {
				t.Errorf("after an answer of %s of term %d: %d of the voters follow, want %d", step.from, step.term, got, step.want)
			}
		}
	})
}

// TestANodeThatLedIsNotOlderThanThat: what it has is as of when a majority took its last messages, and not of when it began to lead.
func TestANodeThatLedIsNotOlderThanThat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, others, begun := newContacts(), []raft.ServerID{"b", "c", "d", "e"}, time.Now()
		want := func(what string, at time.Time) {
			t.Helper()
			if got := c.ledAt(others, 2); !got.Equal(at) {
				t.Errorf("%s: %v, want %v", what, got, at)
			}
		}
		c.answer("b", 3, begun, 0)
		c.answer("c", 3, begun, 0)
		want("it does not know yet what was committed before", time.Time{})
		c.lead(3)
		want("two of four follow", begun)
		time.Sleep(time.Minute)
		c.answer("b", 3, time.Now(), 0)
		want("one is no majority with this node", begun)
		c.answer("e", 3, begun.Add(time.Second), 0)
		want("two are", begun.Add(time.Second))
		c.answer("b", 4, time.Now(), 0)
		want("it leads again, and does not know yet what was committed in between", begun.Add(time.Second))
		c.lead(5)
		want("a later term, which nobody has answered in", time.Time{})
	})
}

// TestALeaderThatStepsDownKnowsOfWhenItsStateIs, though no other has ever led.
func TestALeaderThatStepsDownKnowsOfWhenItsStateIs(t *testing.T) {
	t.Parallel()
	a := overTCP(t, "a", false)
	if err := a.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Leading(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := openTCP(t, Config{Dir: filepath.Join(t.TempDir(), "b"), NodeID: "b", Joins: true})
	if err := a.AddNode(t.Context(), "b", address(b), true); err != nil { // which b has taken then: both vote
		t.Fatal(err)
	}
	for a.IsLeader() && a.Verify(t.Context()) != nil { // until an answer was counted, or b leads
		time.Sleep(10 * time.Millisecond)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for a.IsLeader() {
		time.Sleep(10 * time.Millisecond)
	}
	if age, known := a.StateAge(); !known || age >= time.Since(a.opened) || a.Age() >= time.Since(a.opened) {
		t.Errorf("its state is of %v ago (known: %t), and it heard from a leader %v ago; it was opened %v ago", age, known, a.Age(), time.Since(a.opened))
	}
}

// TestAStateOfADiskHasNoAge: it once was as old as the daemon.
func TestAStateOfADiskHasNoAge(t *testing.T) {
	t.Parallel()
	a, dir := overTCP(t, "a", false), filepath.Join(t.TempDir(), "b")
	if err := a.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := openTCP(t, Config{Dir: dir, NodeID: "b", Joins: true})
	if err := a.AddNode(t.Context(), "b", address(b), false); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Apply(t.Context(), &cluster.SubmitJob{Name: "first"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, b, "the job", func(s *cluster.State) bool { return len(s.Jobs()) == 1 })
	for known := false; !known; _, known = b.StateAge() {
		if t.Context().Err() != nil {
			t.Fatal("the age of a state is not known")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := a.Verify(t.Context()); err != nil {
		t.Errorf("a node that leads does not know it: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if age, known := openTCP(t, Config{Dir: dir, NodeID: "b", Joins: true}).StateAge(); known {
		t.Errorf("a state that comes from the disk is %v old", age)
	}
}
