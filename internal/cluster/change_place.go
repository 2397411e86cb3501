package cluster

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/internal/shard"
)

// PlaceShard says which nodes hold a shard of a durable round, and the frozen parameters that go with it. Each of them has both
// synced and verified.
type PlaceShard struct {
	Job    string       `json:"job"`
	Round  uint64       `json:"round"`
	Digest shard.Digest `json:"digest"`
	Nodes  []string     `json:"nodes"` // all of them, 1 to MaxNodes
}

func (c *PlaceShard) apply(s *State) (string, error) {
	return s.edit(c.Job, func(j *Job) error {
		if len(c.Nodes) == 0 || len(c.Nodes) > MaxNodes {
			return fmt.Errorf("job %s round %d: shard %s on %d nodes: expected 1 to %d", c.Job, c.Round, c.Digest, len(c.Nodes), MaxNodes)
		}
		at := slices.IndexFunc(j.Committed, func(m *Manifest) bool { return m.Round == c.Round })
		if at < 0 {
			return fmt.Errorf("job %s: round %d: %w: it is not one of the durable rounds", c.Job, c.Round, ErrStaleRound)
		}
		m := *j.Committed[at]
		of := slices.IndexFunc(m.Shards, func(s ShardRef) bool { return s.Digest == c.Digest })
		if of < 0 {
			return fmt.Errorf("job %s: round %d has no shard %s", c.Job, c.Round, c.Digest)
		}
		m.Shards = slices.Clone(m.Shards)
		m.Shards[of].Nodes = c.Nodes
		j.Committed = slices.Clone(j.Committed)
		j.Committed[at] = &m
		return nil
	})
}
