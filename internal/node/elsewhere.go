package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// holders are the nodes that have files of a job: first those where a worker of it runs, then those where it ran last, and those that keep its rounds.
func (n *node) holders(j *cluster.Job) []string {
	all := slices.Clone(n.coordinator().Published().Jobs[j.ID].Nodes)
	for _, name := range coordinator.Hosts(j) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// asked are the agents of the other nodes that have files of a job and are not known to be down, by name.
func (n *node) asked(j *cluster.Job) map[string]agent.Agent {
	all := map[string]agent.Agent{}
	for _, name := range n.holders(j) {
		seen, _ := n.seen.get(name)
		if a, err := n.peer(name); err == nil && name != n.id && !seen.down {
			all[name] = a
		}
	}
	return all
}

// elsewhere is the agent of the node where a job's worker writes its log and its history; nil: this node, or nobody knows.
func (n *node) elsewhere(j *cluster.Job) agent.Agent {
	if n.member == nil {
		return nil
	}
	all := n.holders(j)
	if len(all) == 0 || all[0] == n.id {
		return nil
	}
	a, err := n.peer(all[0])
	if err != nil {
		return nil
	}
	return a
}

// bringNewest returns the newest of some rounds, oldest first, that is whole once this node has read of it what only others have; nil where none is.
// It says what is wrong with newer ones.
func (n *node) bringNewest(ctx context.Context, j *cluster.Job, rounds []*cluster.Manifest) (m *cluster.Manifest, faults []error, err error) {
	for _, round := range slices.Backward(rounds) {
		n.bring(ctx, j, round)
		m, wrong, err := coordinator.NewestWhole(ctx, n.agent.Shards(j.ID).Verify, []*cluster.Manifest{round}, func(error) bool { return true })
		faults = append(faults, wrong...)
		if m != nil || err != nil {
			return m, faults, err
		}
	}
	return nil, faults, nil
}

// bring has this node read what a round needs that only others have: shards, and what goes with the model. What cannot be had shows when it is
// looked for.
func (n *node) bring(ctx context.Context, j *cluster.Job, m *cluster.Manifest) {
	if n.member == nil {
		return
	}
	for _, s := range m.Files() {
		if bytes, err := n.agent.Shards(j.ID).Size(ctx, s.Digest); err == nil && bytes == s.Bytes {
			continue
		}
		if err := n.agent.Shards(j.ID).Fetch(ctx, s.Digest, s.Bytes, s.Nodes); err != nil {
			n.log.Warn("a shard of another node cannot be had", zap.String("job", j.ID), zap.String("shard", string(s.Digest)), zap.Error(err))
			return
		}
	}
	needed, err := n.archives.companions(j.ID, m)
	if err != nil {
		return // whoever reads the round says it
	}
	dir := control.ModelDir(agent.JobDir(n.config.StateDir, j.ID))
	for _, d := range needed {
		if _, err := checkpoint.ReadObject(dir, string(d)); d != "" && errors.Is(err, fs.ErrNotExist) {
			n.bringCompanion(ctx, j, dir, string(d))
		}
	}
}

// bringCompanion reads one file that goes with a model from the first node that has it.
func (n *node) bringCompanion(ctx context.Context, j *cluster.Job, dir, digest string) {
	for _, name := range n.holders(j) {
		a, err := n.peer(name)
		if err != nil || name == n.id {
			continue
		}
		text, err := a.Companion(ctx, j.ID, digest+".object")
		if err == nil {
			err = os.MkdirAll(dir, 0o750) // the job may never have had a worker here
		}
		if err == nil {
			_, err = checkpoint.WriteObject(dir, text, 0o640)
		}
		if err == nil {
			return
		}
		n.log.Warn("what goes with a model cannot be had", zap.String("job", j.ID), zap.String("from", name), zap.Error(err))
	}
}
