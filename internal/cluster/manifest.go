package cluster

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/internal/shard"
)

// ShardRef names a durable shard.
type ShardRef struct {
	Stage  int          `json:"stage"` // 0-based
	Digest shard.Digest `json:"digest"`
	Bytes  int64        `json:"bytes"`
	Nodes  []string     `json:"nodes"` // that hold it, synced and verified
	// Layers are the first one of the stage and the one after its last; zero where nobody said.
	Layers [2]int `json:"layers,omitzero"`
	// Frozen is the file with the parameters of the stage that are not trained, the same one in every round; empty: there are none.
	Frozen      shard.Digest `json:"frozen,omitempty"`
	FrozenBytes int64        `json:"frozen_bytes,omitempty"`
}

// Manifest is a committed round: everything needed to resume from it, by reference.
type Manifest struct {
	Job         string          `json:"job"`
	Generation  uint64          `json:"generation"`
	Round       uint64          `json:"round"`
	Stages      int             `json:"stages"`
	Shards      []ShardRef      `json:"shards"`  // one a stage, ascending; those of each group of pipelines follow on those of the one before
	Cursors     []shard.Cursor  `json:"cursors"` // one a pipeline, ascending
	SamplesSeen uint64          `json:"samples_seen"`
	Meta        json.RawMessage `json:"meta,omitempty"` // of whoever trains: losses as of the round, digest of the data
}

// Groups is how many groups of pipelines the round is of. All have as many pipelines, in ascending order.
func (m *Manifest) Groups() int {
	if m.Stages < 1 {
		return 1
	}
	return max(1, len(m.Shards)/m.Stages)
}

// Model is the round with the shards of the first group alone: each has all of its stage's center.
func (m *Manifest) Model() *Manifest {
	out := *m
	out.Shards = m.Shards[: len(m.Shards)/m.Groups() : len(m.Shards)/m.Groups()]
	return &out
}

// Reduced is the round with the shards alone that so many pipelines are restored from.
func (m *Manifest) Reduced(pipelines int) *Manifest {
	out := *m
	out.Shards = slices.Clone(m.Holding(0, pipelines))
	return &out
}

// Holding are the shards, of all stages, of the groups that some pipelines of the round are in: from the first one to the one before the last given. Where none
// is, they are those of the first group, for the center.
func (m *Manifest) Holding(from, to int) (all []ShardRef) {
	stages, each := len(m.Shards)/m.Groups(), len(m.Cursors)/m.Groups()
	for g := range m.Groups() {
		if g*each < to && from < (g+1)*each {
			all = append(all, m.Shards[g*stages:(g+1)*stages]...)
		}
	}
	if all == nil {
		return m.Model().Shards
	}
	return all
}

// Files are those that the round consists of: of each stage its shard and, where it has one, the file of its frozen parameters.
func (m *Manifest) Files() []ShardRef {
	files := make([]ShardRef, 0, len(m.Shards))
	for _, s := range m.Shards {
		files = append(files, s)
		if s.Frozen != "" {
			files = append(files, ShardRef{Stage: s.Stage, Digest: s.Frozen, Bytes: s.FrozenBytes, Nodes: s.Nodes})
		}
	}
	return files
}

// Trained is the round without the files of its frozen parameters.
func (m *Manifest) Trained() *Manifest {
	out := *m
	out.Shards = slices.Clone(m.Shards)
	for i := range out.Shards {
		out.Shards[i].Frozen, out.Shards[i].FrozenBytes = "", 0
	}
	return &out
}

// Validate reports what keeps the manifest from describing a whole round.
func (m *Manifest) Validate() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("manifest of job %s round %d: %s", m.Job, m.Round, fmt.Sprintf(format, args...))
	}
	if m.Stages < 1 || len(m.Shards) == 0 || len(m.Shards)%m.Stages != 0 {
		return fail("%d shards for %d stages: one for each, of each group of pipelines", len(m.Shards), m.Stages)
	}
	for k, s := range m.Shards {
		if s.Stage != k%m.Stages {
			return fail("shard %d is of stage %d: stages 0 to %d must be there once each, in order", k, s.Stage, m.Stages-1)
		}
	}
	if groups := m.Groups(); len(m.Cursors) > 0 && len(m.Cursors)%groups != 0 {
		return fail("%d pipelines in %d groups: as many in each", len(m.Cursors), groups)
	}
	for _, s := range m.Files() {
		if _, err := shard.ParseDigest(string(s.Digest)); err != nil {
			return fail("stage %d: %s", s.Stage, err)
		}
		if s.Bytes <= 0 || len(s.Nodes) == 0 {
			return fail("stage %d: %d bytes on nodes %v: expected a size and at least one node", s.Stage, s.Bytes, s.Nodes)
		}
	}
	if len(m.Cursors) == 0 {
		return fail("no cursors: one for each pipeline")
	}
	for i := 1; i < len(m.Cursors); i++ {
		if m.Cursors[i].Pipeline <= m.Cursors[i-1].Pipeline {
			return fail("cursor of pipeline %d after that of %d: each pipeline once, ascending",
				m.Cursors[i].Pipeline, m.Cursors[i-1].Pipeline)
		}
	}
	if len(m.Meta) > 0 && !json.Valid(m.Meta) {
		return fail("meta is not valid JSON")
	}
	return nil
}
