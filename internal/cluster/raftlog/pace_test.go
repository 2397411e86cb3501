package raftlog

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// deaf is a pipeline whose messages nobody answers.
type deaf struct {
	raft.AppendPipeline

	sent int
}

func (d *deaf) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	d.sent++
	return nil, nil
}

// paced is a pace in a cluster of a node that votes, v, and so many others, n0 and so on.
func paced(others int) (*pace, chan struct{}) {
	c := raft.Configuration{Servers: []raft.Server{{ID: "v", Suffrage: raft.Voter}}}
	for i := range others {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(fmt.Sprintf("n%d", i)), Suffrage: raft.Nonvoter})
	}
	closing := make(chan struct{})
	p := newPace(closing)
	p.follow(func() raft.Configuration { return c }, time.Second)
	return p, closing
}

// sendsIn is how many messages go to a node in a time, each of so many entries, if there is always another one.
func sendsIn(t *testing.T, p *pace, id raft.ServerID, entries int, d time.Duration) int {
	t.Helper()
	to := &deaf{}
	line := &pacedPipeline{AppendPipeline: to, pace: p, id: id, full: 64, patience: transportTimeout}
	for began := time.Now(); time.Since(began) < d && to.sent < 1000; {
		if _, err := line.AppendEntries(&raft.AppendEntriesRequest{Entries: make([]*raft.Log, entries)}, nil); err != nil {
			t.Error(err)
		}
	}
	return to.sent
}

func TestNodesThatDoNotVoteHearTheLessOftenTheMoreThereAre(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			others  int
			to      raft.ServerID
			entries int
			want    int // in a second; 1000: at once
		}{
			{200, "v", 1, 1000},   // those that vote hear at once
			{200, "n7", 1, 3},     // each 0.4 of the time in which a leader counts as gone
			{200, "n7", 64, 1000}, // one that is behind is not held up
			{50, "n7", 1, 10},
			{5, "n1", 1, 100},
		} {
			p, _ := paced(c.others)
			if got := sendsIn(t, p, c.to, c.entries, time.Second); got != c.want {
				t.Errorf("%d others: %d messages of %d entries a second to %s, want %d", c.others, got, c.entries, c.to, c.want)
			}
		}
	})
}

// TestAHeartbeatIsLeftOutWhereOtherMessagesGo, and no longer.
func TestAHeartbeatIsLeftOutWhereOtherMessagesGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, closing := paced(200)
		if p.spares("n7") || p.spares("v") {
			t.Error("left out although nothing was said")
		}
		go sendsIn(t, p, "n7", 1, 2*time.Second)
		synctest.Wait()
		spared, began := 0, time.Now()
		for p.spares("n7") {
			spared++
		}
		if silent := time.Since(began) - 2*time.Second; spared < 5 || silent > 700*time.Millisecond {
			t.Errorf("%d heartbeats are left out, up to %v after the last message", spared, silent)
		}
		p.sends("n7")
		close(closing)
		if began := time.Now(); !p.spares("n7") || time.Since(began) > 0 {
			t.Error("waits although the transport closes")
		}
	})
}

// TestWhoVotesIsLookedUpAnew when the configuration changes.
func TestWhoVotesIsLookedUpAnew(t *testing.T) {
	t.Parallel()
	p, _ := paced(200)
	p.sends("n7")
	c := raft.Configuration{Servers: []raft.Server{{ID: "v"}, {ID: "n1"}, {ID: "n2", Suffrage: raft.Nonvoter}}}
	p.follow(func() raft.Configuration { return c }, time.Second)
	if of := []time.Duration{p.between("v"), p.between("n1"), p.between("n2")}; of[0] != 0 || of[1] != 0 || of[2] != messageShare {
		t.Errorf("%v", of)
	}
	if len(p.sent) != 0 {
		t.Errorf("of a node that is no member any more, %v is kept", p.sent)
	}
}
