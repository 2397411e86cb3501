package raftlog

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestWhoVotes(t *testing.T) {
	t.Parallel()
	leader := server{name: "l", voter: true, leader: true, healthy: true, stable: true, lasting: time.Hour}
	voter := func(name string) server {
		return server{name: name, voter: true, healthy: true, stable: true, lasting: time.Minute}
	}
	spare := func(name string) server {
		s := voter(name)
		s.voter = false
		return s
	}
	with := func(s server, change func(*server)) server {
		change(&s)
		return s
	}
	gone := func(s *server) { s.healthy, s.stable, s.gone = false, false, true }
	sick := func(s *server) { s.healthy, s.stable = false, false }
	drained := func(s *server) { s.draining = true }
	for _, c := range []struct {
		what            string
		servers         []server
		promote, demote string
	}{
		{"one of two votes", []server{leader, spare("a")}, "", ""},
		{"three of three vote, one after the other", []server{leader, spare("a"), spare("b")}, "a", ""},
		{"three of four vote", []server{leader, voter("a"), voter("b"), spare("c")}, "", ""},
		{"five of five vote", []server{leader, voter("a"), voter("b"), spare("c"), spare("d")}, "c", ""},
		{"those who are not stable do not", []server{leader, with(spare("a"), sick), spare("b")}, "b", ""},
		{"those who are drained do not", []server{leader, with(spare("a"), drained), spare("b")}, "b", ""},
		{"those who did not take the key do not", []server{leader, with(spare("a"), func(s *server) { s.unready = true }), spare("b")}, "b", ""},
		{"the longest healthy one does", []server{leader, spare("a"), with(spare("b"), func(s *server) { s.lasting = time.Hour })}, "b", ""},
		{"another votes first for one that is gone", []server{leader, with(voter("a"), gone), voter("b"), spare("c")}, "c", ""},
		{"then that one does not", []server{leader, with(voter("a"), gone), voter("b"), voter("c")}, "", "a"},
		{"one that is gone keeps its vote where nobody can have it", []server{leader, with(voter("a"), gone), voter("b"), with(spare("c"), sick)}, "", ""},
		{"and so does one that is sick only", []server{leader, with(voter("a"), sick), voter("b"), spare("c")}, "", ""},
		{"nobody loses a vote where the others are no majority", []server{leader, with(voter("a"), gone), with(voter("b"), sick), with(voter("c"), sick)}, "", ""},
		{"after a removal one of two votes", []server{leader, voter("a")}, "", "a"},
		{"but only where all are well", []server{leader, with(voter("a"), sick)}, "", ""},
		{"one that is drained loses its vote before others", []server{leader, voter("b"), voter("c"), with(voter("a"), drained)}, "", "a"},
	} {
		promote, demote, why := chooseVoters(c.servers)
		if promote != c.promote || demote != c.demote || (why == "") != (promote == "" && demote == "") {
			t.Errorf("%s: %q votes, %q does not, because %q; want %q and %q", c.what, promote, demote, why, c.promote, c.demote)
		}
	}
}

func TestAVoterThatIsGoneIsReplacedAndStays(t *testing.T) {
	c := newGroup(t)
	c.connect("d")
	joining, err := Open(Config{Dir: filepath.Join(c.dir, "d"), NodeID: "d", Transport: c.transports["d"], Joins: true, HeartbeatTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := joining.Close(); err != nil {
			t.Error(err)
		}
	})
	c.logs["d"] = joining
	if err := c.logs["a"].WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	leader := c.logs[c.logs["a"].Leader()]
	if err := leader.AddNode(t.Context(), "d", "d", false); err != nil {
		t.Fatal(err)
	}
	gone := "a"
	if leader == c.logs["a"] {
		gone = "b"
	}
	if err := c.logs[gone].Close(); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	var prepared []string
	var running sync.WaitGroup
	running.Go(func() {
		if err := leader.RunAutopilot(ctx, AutopilotConfig{
			Servers: func() (all []Server) {
				for name, l := range c.logs {
					all = append(all, Server{Name: name, Alive: name != gone, Known: name != gone, Progress: l.Progress()})
				}
				return all
			},
			Prepare: func(_ context.Context, name string) error {
				prepared = append(prepared, name)
				return nil
			},
			Stable: 10 * time.Millisecond, ReplaceAfter: 10 * time.Millisecond, Every: 20 * time.Millisecond,
		}); err != nil {
			t.Error(err)
		}
	})
	voters := func() []string {
		members, err := leader.Members()
		if err != nil {
			t.Fatal(err)
		}
		if len(members) != 4 {
			t.Fatalf("members %v; want four: none is removed", members)
		}
		return Voters(members)
	}
	var want []string
	for name := range c.logs {
		if name != gone {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	limit := time.Now().Add(time.Minute)
	for !slices.Equal(voters(), want) {
		if time.Now().After(limit) {
			t.Fatalf("%v vote; want %v", voters(), want)
		}
		time.Sleep(10 * time.Millisecond)
	}
	end()
	running.Wait()
	if !slices.Equal(prepared, []string{"d"}) {
		t.Errorf("prepared to vote: %v", prepared)
	}
}
