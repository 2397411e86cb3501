package coordinator

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// named is the agent of a node, whose shards know which one it is.
type named struct {
	agent.Agent

	name string
}

func (n named) Shards(string) agent.Shards { return shardsOf{name: n.name} }

type shardsOf struct {
	agent.Shards

	name string
}

// TestAShardIsLookedForWhereARoundSaysFirst, so that few nodes of many are asked, and then everywhere.
func TestAShardIsLookedForWhereARoundSaysFirst(t *testing.T) {
	t.Parallel()
	var nodes []Node
	for i := range 200 {
		name := fmt.Sprintf("n%03d", i)
		nodes = append(nodes, Node{Name: name, Agent: named{name: name}})
	}
	const d = shard.Digest("d")
	round := &cluster.Manifest{Shards: []cluster.ShardRef{{Digest: d, Nodes: []string{"n120", "n150"}}}}
	for _, c := range []struct {
		is, first string
		want      []string
	}{
		{"n120", "", []string{"n120"}},
		{"n150", "", []string{"n120", "n150"}},
		{"n150", "n150", []string{"n150"}},
		{"n001", "", []string{"n120", "n150", "n000", "n001"}},
	} {
		var asked []string
		h := holdersOn(nodes, "1", []*cluster.Manifest{round}, nil, func(s agent.Shards, _ context.Context, _ shard.Digest) (int64, error) {
			name := s.(shardsOf).name //nolint:forcetypeassert // as above
			if asked = append(asked, name); name == c.is {
				return 1, nil
			}
			return 0, fs.ErrNotExist
		})
		if c.first != "" {
			h.preferring(placement{{Node: c.first}}, []*cluster.Manifest{round})
		}
		if _, err := h.one(t.Context(), d); err != nil || !slices.Equal(asked, c.want) {
			t.Errorf("on %s, to be on %q: asked %v, %v; want %v", c.is, c.first, asked, err, c.want)
		}
	}
}
