package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/reshard"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// How copies of shards are made.
const (
	copyPause = 10 * time.Second // before a node that could not take a copy is asked again
	copyLeast = 30 * time.Second // that a commit waits for copies at least, and then with
	copySpeed = 10 << 20         // bytes a second of the largest shard; after that it has those that there are

	recopyEvery = 5 * time.Second // between looks for shards of which there are too few copies
	recopyAgain = time.Minute     // before one is tried again that could not be copied, so that others have their turn
	recopyAfter = time.Minute     // that a node is gone before what it has is copied elsewhere: one that is started anew is back before
)

// copies are those of one shard that a commit needs.
type copies struct {
	have  []string // nodes that have it, the one that wrote it first
	busy  []string // that fetch it
	tried map[string]time.Time
	fault string // why the last node could not take it
}

// replicas is how many copies of each shard a job is to have, on so many nodes.
func (o *observed) replicas(nodes int) int { return max(1, min(o.spec.Job.Center.Replicas, nodes)) }

// copyShards has nodes fetch the shards that were reported of the pending round, as soon as each is there, and notes what is missing.
func (c *Coordinator) copyShards(o *observed, now time.Time) {
	before := o.uncopied
	o.uncopied = ""
	round := o.Pending
	if round == 0 || len(o.shards[round]) == 0 || o.spec.Job.Center.Replicas < 2 {
		return
	}
	away := c.unreached()
	nodes := slices.DeleteFunc(slices.Clone(c.nodes()), func(n Node) bool { return away[n.Name] != "" })
	want, largest := o.replicas(len(nodes)), int64(0)
	for _, k := range slices.Sorted(maps.Keys(o.shards[round])) {
		s := o.shards[round][k]
		of := o.copies[shard.Digest(s.Digest)]
		if of == nil {
			of = &copies{have: []string{s.node}, tried: map[string]time.Time{}}
			o.copies[shard.Digest(s.Digest)] = of
		}
		largest = max(largest, s.Bytes)
		if len(of.have) >= want {
			continue
		}
		o.uncopied = fmt.Sprintf("round %d: the shard of stage %d is on %d of %d nodes", round, s.Stage, len(of.have), want)
		if of.fault != "" {
			o.uncopied += "; " + of.fault
		}
		for more := true; more && len(of.have)+len(of.busy) < want; {
			more = c.copyShard(o, s, of, nodes, now)
		}
	}
	if !o.durable(round) {
		return
	}
	if o.wholeAt.IsZero() {
		o.wholeAt = now
	}
	bound := copyLeast + time.Duration(largest/copySpeed)*time.Second
	if o.uncopied == "" || now.Sub(o.wholeAt) <= bound {
		return
	}
	if before != "" {
		c.log.Warn("a round is committed with fewer copies than center.replicas", zap.String("job", o.ID), zap.Duration("bound", bound), zap.String("missing", o.uncopied))
	}
	o.uncopied = ""
}

// copyShard has a node fetch a shard: the one that has the fewest of those that may, and one that is drained only where there is no other, since a second copy
// there is more than none. It returns false where there is none.
func (c *Coordinator) copyShard(o *observed, s stored, of *copies, nodes []Node, now time.Time) bool {
	may := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool {
		return slices.Contains(of.have, n.Name) || slices.Contains(of.busy, n.Name) || now.Before(of.tried[n.Name])
	})
	if len(may) == 0 {
		return false
	}
	to := slices.MinFunc(may, func(a, b Node) int {
		switch {
		case a.Draining && !b.Draining:
			return 1
		case b.Draining && !a.Draining:
			return -1
		}
		return cmp.Compare(c.sight(a.Name).copies, c.sight(b.Name).copies)
	})
	c.sight(to.Name).copies++
	of.busy = append(of.busy, to.Name)
	id, from := o.ID, slices.Clone(of.have)
	ref := cluster.ShardRef{Digest: shard.Digest(s.Digest), Bytes: s.Bytes, Frozen: s.Frozen.Digest, FrozenBytes: s.Frozen.Bytes}
	c.start(id, false, func(ctx context.Context) (func(*observed), error) {
		err := c.fetch(ctx, to, id, ref, from)
		at := c.now()
		return func(o *observed) {
			of.busy = slices.DeleteFunc(of.busy, func(name string) bool { return name == to.Name })
			if err == nil {
				of.have, o.heard = append(of.have, to.Name), at
				return
			}
			of.fault, of.tried[to.Name] = fmt.Sprintf("node %s could not copy it: %v", to.Name, err), c.now().Add(copyPause)
			c.log.Warn("copy a shard", zap.String("job", id), zap.String("node", to.Name), zap.Error(err))
			if errors.Is(err, agent.ErrUnreachable) {
				c.sight(to.Name).sweepAt = c.now()
			}
		}, nil
	})
	return true
}

// fetch has a node fetch a shard, and what is frozen of its stage, from nodes that have both.
func (c *Coordinator) fetch(ctx context.Context, to Node, job string, s cluster.ShardRef, from []string) error {
	c.litter.suspect(job, to.Name)
	defer c.litter.suspect(job, to.Name) // also where it was asked meanwhile, and had none yet
	state := c.raft.State()
	j, err := state.Job(job)
	if err == nil {
		err = c.recordAt(ctx, to, j, false, state)
	}
	if err != nil {
		return err
	}
	at := to.Agent.Shards(job)
	if err := at.Fetch(ctx, s.Digest, s.Bytes, from); err != nil {
		return c.on(to, err)
	}
	if s.Frozen != "" {
		return c.on(to, at.Fetch(ctx, s.Frozen, s.FrozenBytes, from))
	}
	return nil
}

// bring has the nodes of a placement fetch what their workers start from and they do not have, or have damaged. What is frozen workers can make again.
func (a *act) bring(ctx context.Context, from *cluster.Manifest) error {
	if from == nil || len(a.nodes()) < 2 {
		return nil
	}
	for _, name := range a.taking.nodes() {
		n, ok := a.node(name)
		if !ok {
			return noNode{name: name}.err()
		}
		for k, s := range from.Shards {
			if !a.needed(from, k, name) || slices.Contains(s.Nodes, name) && a.verified[s.Digest] == name && whole(ctx, n.Agent.Shards(a.ID), s) {
				continue
			}
			sources := a.reachable(s.Nodes)
			if where := a.verified[s.Digest]; where != "" { // also a node that the manifest does not name, as one that has read it from a bucket
				sources = unique(append(sources, where))
			}
			if err := a.fetch(ctx, n, a.ID, s, others(sources, name)); err != nil {
				return fmt.Errorf("bring the shard of stage %d to node %s: %w", s.Stage, name, err)
			}
			s.Nodes = append(slices.Clone(s.Nodes), name)
			from.Shards[k] = s
			if err := a.propose(ctx, &cluster.PlaceShard{Job: a.ID, Round: from.Round, Digest: s.Digest, Nodes: unique(s.Nodes)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// needed reports whether a stage that is about to be on a node, with the pipelines of its group, is made of shard k of a round.
func (a *act) needed(from *cluster.Manifest, k int, node string) bool {
	split, shared := a.spec.Split(), a.spec.Job.Shared()
	if len(split) != a.spec.Stages() { // by operations, which nobody has counted here
		return len(from.Shards) != len(a.taking) || a.taking[k].Node == node
	}
	for _, at := range a.taking {
		part := reshard.Part{Split: split, Stage: at.Stage, From: at.Group * shared, To: (at.Group + 1) * shared}
		if at.Node == node && slices.ContainsFunc(reshard.Needs(from, part), func(of cluster.ShardRef) bool { return of.Digest == from.Shards[k].Digest }) {
			return true
		}
	}
	return false
}

// whole reports whether a shard, and what goes with it, has its length. Workers read it through.
func whole(ctx context.Context, at agent.Shards, s cluster.ShardRef) bool {
	bytes, err := at.Size(ctx, s.Digest)
	if err != nil || bytes != s.Bytes || s.Frozen == "" {
		return err == nil && bytes == s.Bytes
	}
	bytes, err = at.Size(ctx, s.Frozen)
	return err == nil && bytes == s.FrozenBytes
}

// others are names without one.
func others(names []string, one string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return name == one })
}

func unique(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// reachable are the nodes of these that could be reached when the act began.
func (a *act) reachable(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return a.away[name] != "" })
}

// recopy makes new copies of shards of which too few nodes are left, in the background, one at a time for each node that gets some. A node that is drained
// is about to go: what it has does not count. Of a job with one copy of each shard, what it needs goes where it is placed while it runs.
func (c *Coordinator) recopy(state *cluster.State, now time.Time) {
	if nodes := c.nodes(); len(nodes) < 2 || now.Before(c.recopyAt) {
		return
	}
	c.recopyAt = now.Add(recopyEvery)
	maps.DeleteFunc(c.uncopied, func(_ shard.Digest, at time.Time) bool { return !now.Before(at) })
	away := c.unreached()
	var open []Node
	for _, n := range c.nodes() {
		if away[n.Name] == "" {
			open = append(open, n)
		}
	}
	for _, j := range state.Jobs() {
		s, err := c.Spec(j)
		if o := c.jobs[j.ID]; err != nil || s.Job.Center.Replicas < 2 && o != nil && (o.lives() || o.acting) {
			continue
		}
		for _, m := range slices.Backward(j.Committed) {
			for _, ref := range m.Shards {
				c.recopyShard(j, m.Round, ref, min(s.Job.Center.Replicas, len(open)), open, now)
			}
		}
	}
}

func (c *Coordinator) recopyShard(j *cluster.Job, round uint64, ref cluster.ShardRef, want int, open []Node, now time.Time) {
	var kept, from []string // of members; of those that answer
	count := 0
	for _, name := range ref.Nodes {
		n, member := c.node(name)
		if !member {
			continue
		}
		kept = append(kept, name)
		since := n.Reach.Since
		if s := c.sight(name); since.IsZero() {
			since = s.cut
		}
		if since.IsZero() {
			from = append(from, name)
		}
		if !n.Draining && (since.IsZero() || now.Sub(since) < recopyAfter) {
			count++
		}
	}
	if _, failed := c.uncopied[ref.Digest]; count >= want || len(from) == 0 || failed {
		return
	}
	for _, n := range open {
		at := c.sight(n.Name)
		if n.Draining || at.copying || now.Before(at.copyAt) || slices.Contains(kept, n.Name) {
			continue
		}
		at.copying = true
		c.start(j.ID, false, func(ctx context.Context) (func(*observed), error) {
			err := c.fetch(ctx, n, j.ID, ref, from)
			if err == nil {
				_, err = c.raft.Apply(ctx, &cluster.PlaceShard{Job: j.ID, Round: round, Digest: ref.Digest, Nodes: append(slices.Clone(kept), n.Name)})
			}
			return func(*observed) {
				at.copying = false
				c.recopyAt = c.now()
				if err != nil {
					at.copyAt, c.uncopied[ref.Digest] = c.now().Add(copyPause), c.now().Add(recopyAgain)
					c.log.Warn("copy a shard of which there are too few", zap.String("job", j.ID), zap.Uint64("round", round), zap.String("node", n.Name), zap.Error(err))
					return
				}
				c.log.Info("a shard was copied of which there were too few", zap.String("job", j.ID), zap.Uint64("round", round), zap.String("node", n.Name))
			}, nil
		})
		return
	}
}
