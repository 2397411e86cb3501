package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/shard"
)

// TestAShardIsPlaced changes the nodes of one shard of one round, and no state that somebody else has.
func TestAShardIsPlaced(t *testing.T) {
	first, second := shard.Digest(strings.Repeat("a", 64)), shard.Digest(strings.Repeat("b", 64))
	old := NewState()
	old.jobs["1"] = &Job{ID: "1", Committed: []*Manifest{{Round: 7, Shards: []ShardRef{{Digest: first, Nodes: []string{"a"}}, {Digest: second, Nodes: []string{"a"}}}}}}
	next, _, err := old.Apply(1, &PlaceShard{Job: "1", Round: 7, Digest: second, Nodes: []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	is, was := next.jobs["1"].Committed[0].Shards, old.jobs["1"].Committed[0].Shards
	if len(is[0].Nodes) != 1 || len(is[1].Nodes) != 2 || len(was[1].Nodes) != 1 {
		t.Errorf("now %+v, before %+v", is, was)
	}
	if _, _, err = old.Apply(1, &PlaceShard{Job: "1", Round: 8, Digest: second, Nodes: []string{"b"}}); !errors.Is(err, ErrStaleRound) {
		t.Errorf("of a round that is not kept: %v", err)
	}
	for _, c := range []*PlaceShard{{Job: "1", Round: 7, Digest: second}, {Job: "1", Round: 7, Digest: "c", Nodes: []string{"b"}}, {Job: "2", Nodes: []string{"b"}}} {
		if _, _, err := old.Apply(1, c); err == nil {
			t.Errorf("%+v was applied", c)
		}
	}
}
