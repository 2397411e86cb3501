package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/membership"
)

func TestANodeIsDownByGossipAndAQuestion(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(s int) time.Time { return now.Add(-time.Duration(s) * time.Second) }
	silent := errors.New("connection refused")
	dead := membership.Member{State: membership.Dead, Since: ago(5)}
	for _, c := range []struct {
		what      string
		heard     membership.Member
		seen      sight
		want      api.NodeState
		reachable bool
	}{
		{"all is well", membership.Member{State: membership.Alive}, sight{begun: ago(9), at: now, asked: now}, api.NodeAlive, true},
		{"it was not asked", dead, sight{}, api.NodeSuspect, false},
		{"gossip says dead, and it does not answer", dead, sight{begun: ago(9), at: ago(6), asked: ago(1), err: silent}, api.NodeDown, false},
		{"it left, and does not answer", membership.Member{State: membership.Left, Since: ago(5)}, sight{begun: ago(9), asked: ago(1), err: silent}, api.NodeDown, false},
		{"gossip says dead, and it answers", dead, sight{begun: ago(9), at: ago(1), asked: ago(1)}, api.NodeSuspect, true},
		{"gossip says dead, and it was not asked since then", dead, sight{begun: ago(9), at: ago(9), asked: ago(6), err: silent}, api.NodeSuspect, false},
		{"gossip says alive, and it does not answer for long", membership.Member{State: membership.Alive}, sight{begun: ago(99), at: ago(90), asked: ago(1), err: silent}, api.NodeSuspect, false},
		{"it missed one question", membership.Member{State: membership.Alive}, sight{begun: ago(99), at: ago(2), asked: ago(1), err: silent}, api.NodeAlive, true},
		{"it has not answered for a while", membership.Member{State: membership.Alive}, sight{begun: ago(99), at: ago(4), asked: ago(4)}, api.NodeSuspect, false},
		{"it has not, of many, which are asked less often", membership.Member{State: membership.Alive}, sight{begun: ago(99), at: ago(4), asked: ago(4), every: seeing(250)}, api.NodeAlive, true},
		{"nothing is heard, and it answers", membership.Member{}, sight{begun: ago(9), at: ago(1), asked: ago(1)}, api.NodeAlive, true},
	} {
		state, reach := judge(c.heard, c.seen, now)
		if state != c.want || reach.Since.IsZero() != c.reachable || reach.Down != (c.want == api.NodeDown) || (reach.Why == "") != c.reachable {
			t.Errorf("%s: %s, %+v; want %s, reachable %v", c.what, state, reach, c.want, c.reachable)
		}
	}
}

// TestANodeWasLastHeardAlsoBefore this one led: a node that is dead for a minute did not answer four seconds ago, when the term began.
func TestANodeWasLastHeardAlsoBefore(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(s int) time.Time { return now.Add(time.Duration(-s) * time.Second) }
	for what, c := range map[string]struct {
		heard membership.Member
		seen  sight
		want  float64
	}{
		"it was gone when the term began":   {membership.Member{State: membership.Dead, Since: ago(66), Answered: ago(68)}, sight{begun: ago(4), asked: ago(1)}, 68},
		"it answers":                        {membership.Member{Answered: ago(3)}, sight{begun: ago(9), at: ago(1)}, 1},
		"it answers probes, and nobody led": {membership.Member{Answered: ago(2)}, sight{}, 2},
		"nothing is known":                  {membership.Member{State: membership.Dead, Since: ago(5)}, sight{begun: ago(4)}, 0},
	} {
		if got := lastHeard(c.heard, c.seen, now); got != c.want {
			t.Errorf("%s: %v s ago; want %v", what, got, c.want)
		}
	}
}

func TestTheOldestNodeSaysWhichCommandsThereAre(t *testing.T) {
	t.Parallel()
	nodes := []*cluster.Node{{Name: "n1", Version: "v2"}, {Name: "n2", Version: "v1"}}
	before := max(1, cluster.CommandVersion-1)
	for what, c := range map[string]struct {
		heard map[string]membership.Member
		want  int
	}{
		"nothing is heard: one runs another program": {nil, before},
		"both are heard":               {map[string]membership.Member{"n1": {Commands: cluster.CommandVersion}, "n2": {Commands: cluster.CommandVersion + 1}}, cluster.CommandVersion},
		"one that is dead counts":      {map[string]membership.Member{"n2": {State: membership.Dead, Commands: before}}, before},
		"one that is removed does not": {map[string]membership.Member{"n2": {Commands: cluster.CommandVersion}, "n3": {Commands: 0}}, cluster.CommandVersion},
	} {
		if got := oldestCommands(nodes, c.heard, "v2"); got != c.want {
			t.Errorf("%s: %d; want %d", what, got, c.want)
		}
	}
}

// TestANodeIsDrainedOnceNothingIsOnlyThere, or where no other node takes copies.
func TestANodeIsDrainedOnceNothingIsOnlyThere(t *testing.T) {
	t.Parallel()
	other := func(s api.NodeState) api.NodeStatus { return api.NodeStatus{ID: "n2", State: s} }
	for what, c := range map[string]struct {
		node, other api.NodeStatus
		want        api.NodeState
		says        string
	}{
		"nothing is there":     {api.NodeStatus{Reason: "root drains it"}, other(api.NodeAlive), api.NodeDrained, "root drains it"},
		"a job runs there":     {api.NodeStatus{Jobs: []string{"3"}}, other(api.NodeAlive), api.NodeDraining, ""},
		"shards are to go":     {api.NodeStatus{Alone: []string{"3", "4"}}, other(api.NodeAlive), api.NodeDraining, "jobs 3, 4: these are being copied"},
		"none takes copies":    {api.NodeStatus{Alone: []string{"3"}}, other(api.NodeDown), api.NodeDrained, "jobs 3: no other node takes copies now"},
		"the other is drained": {api.NodeStatus{Alone: []string{"3"}}, other(api.NodeDraining), api.NodeDrained, "no other node takes copies now"},
	} {
		c.node.State = api.NodeDraining
		all := []api.NodeStatus{c.node, c.other}
		if settleDrained(all); all[0].State != c.want || !strings.Contains(all[0].Reason, c.says) || (len(c.node.Alone) == 0) != (all[0].Reason == c.node.Reason) {
			t.Errorf("%s: %s: %q; want %s: %q", what, all[0].State, all[0].Reason, c.want, c.says)
		}
	}
}

func TestPeersAreMadeAnewWhereMembersHaveChanged(t *testing.T) {
	t.Parallel()
	var g gossip
	a, b := []*cluster.Node{{Name: "n1", Address: "n1:1"}}, []*cluster.Node{{Name: "n1", Address: "n1:2"}}
	first := g.peersOf(a)
	first["seen"] = "by nobody else" // nobody does that but this test
	if again := g.peersOf(a); again["n1"] != "n1:1" || again["seen"] == "" {
		t.Errorf("of the same members: %v", again)
	}
	if other := g.peersOf(b); other["n1"] != "n1:2" || other["seen"] != "" {
		t.Errorf("of others: %v", other)
	}
	if none := g.peersOf(nil); len(none) != 0 {
		t.Errorf("of none: %v", none)
	}
}

func TestOnlyNodesOfWhichThereIsNewsAreLookedAtEarly(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := seen{of: map[string]sight{"n1": {asked: now}}}
	for what, c := range map[string]struct {
		name  string
		heard time.Time
		want  bool
	}{
		"it was asked since":            {"n1", now.Add(-time.Second), false},
		"nothing was heard":             {"n1", time.Time{}, false},
		"something was heard since":     {"n1", now.Add(time.Second), true},
		"it was never asked":            {"n2", now, true},
		"nothing is known of it at all": {"n2", time.Time{}, true},
	} {
		if got := s.before(c.name, c.heard); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// TestManyNodesAreAskedLessOften, so that there are no more questions a second.
func TestManyNodesAreAskedLessOften(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[int]time.Duration{1: time.Second, 100: time.Second, 200: 2 * time.Second, 350: 3500 * time.Millisecond} {
		if got := seeing(nodes); got != want {
			t.Errorf("%d nodes: each every %v, want %v", nodes, got, want)
		}
	}
}

func TestANodeIsLookedAtOnceAtATime(t *testing.T) {
	t.Parallel()
	s := seen{looked: map[string]bool{}}
	if first, again, other := s.begin("n1"), s.begin("n1"), s.begin("n2"); !first || again || !other {
		t.Errorf("%v, again %v, another one %v", first, again, other)
	}
	if s.end("n1"); !s.begin("n1") {
		t.Error("it is never looked at again")
	}
}
