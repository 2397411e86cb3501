package placer

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestGroupsGoToNodesOfTheirOwn, each as few as a job of one group takes, and where there is any way for all of them one is found.
func TestGroupsGoToNodesOfTheirOwn(t *testing.T) {
	slow := Links{{"a", "b"}: {BitsPerSecond: 1e6, RoundTrip: time.Millisecond}}
	for name, c := range map[string]struct {
		groups, threads int
		spread          bool
		nodes           []Node
		want, why       string
	}{
		"one node each":             {2, 1, false, []Node{node("a", 4), node("b", 4), node("c", 4)}, "a a b b", "group 0: all stages on a; group 1: all stages on b"},
		"three of them":             {3, 1, false, []Node{node("a", 2), node("b", 2), node("c", 2)}, "a a b b c c", ""},
		"the fastest first":         {2, 1, false, []Node{node("a", 2), func() Node { n := node("b", 2); n.Speed = 4; return n }()}, "b b a a", ""},
		"a node is not shared":      {2, 1, false, []Node{node("a", 8)}, "", "a: taken by group 0 of 2; 1 nodes for 2 groups"},
		"some of two nodes":         {2, 2, false, []Node{node("a", 4), node("b", 2), node("c", 2)}, "a a b c", "group 1: stage 0 on b, 1 on c: no node has 4 cores free"},
		"small and large ones":      {2, 2, false, []Node{node("a", 3), node("b", 3), node("c", 2), node("d", 2)}, "c d a b", ""},
		"spread, but room for both": {2, 1, true, []Node{node("a", 2), node("b", 2), node("c", 2)}, "a b c c", ""},
		"the messages take longer":  {2, 1, false, []Node{node("a", 2), node("b", 2)}, "a a b b", "what pipelines send each other takes longer than a batch, over the link a-b with 1 Mbit/s"},
	} {
		j := pipeline(t, 2, c.threads, 1e5)
		j.Groups, j.Spread, j.Messages = c.groups, c.spread, []int64{1e6, 1e6}
		links := Links(nil)
		if strings.Contains(c.why, "messages") || name == "the messages take longer" {
			links = slow
		}
		p, err := Place(j, c.nodes, links)
		if err != nil {
			p.Reason = err.Error()
			if lacks, ok := errors.AsType[*NoRoomError](err); !ok || len(lacks.Lacks) == 0 {
				t.Errorf("%s: %v is no account of what nodes lack", name, err)
			}
		}
		if on(p) != c.want || !strings.Contains(p.Reason, c.why) {
			t.Errorf("%s: on %q, want %q: %s; expected %s", name, on(p), c.want, p.Reason, c.why)
		}
		if err != nil {
			continue
		}
		for i, s := range p.Seats {
			if s.Group != i/2 || s.Stage != i%2 || len(s.Cores) != c.threads {
				t.Errorf("%s: seat %d is %+v", name, i, s)
			}
			if slices.ContainsFunc(p.Seats, func(o Seat) bool { return o.Node == s.Node && o.Group != s.Group }) {
				t.Errorf("%s: node %s has stages of two groups", name, s.Node)
			}
		}
		if links != nil && p.Seconds < 16 { // 2 MB each way, of one pipeline
			t.Errorf("%s: a batch is predicted to take %v s", name, p.Seconds)
		}
	}
}
