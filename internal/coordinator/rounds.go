package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// damagedRound says which shard of a round can never be used. Every other error of CheckRound may pass.
type damagedRound struct {
	round uint64
	err   error
}

func (e *damagedRound) Error() string { return fmt.Sprintf("round %d: %v", e.round, e.err) }
func (e *damagedRound) Unwrap() error { return e.err }

// CheckRound looks at every file of a round: look reads it through, or only finds its length. It returns the first fault: a
// *damagedRound when the bytes are not those that were committed; anything else when they cannot be had now.
func CheckRound(ctx context.Context, m *cluster.Manifest, look func(context.Context, shard.Digest) (int64, error)) error {
	for _, s := range m.Files() {
		bytes, err := look(ctx, s.Digest)
		if err == nil && bytes != s.Bytes {
			return &damagedRound{m.Round, fmt.Errorf("stage %d: shard %s has %d bytes, expected %d", s.Stage, s.Digest, bytes, s.Bytes)}
		}
		if damaged, ok := errors.AsType[*shard.DamagedError](err); ok {
			return &damagedRound{m.Round, fmt.Errorf("stage %d: %w", s.Stage, damaged)}
		}
		if err != nil {
			return fmt.Errorf("job %s round %d stage %d: %w", m.Job, m.Round, s.Stage, err)
		}
	}
	return nil
}

// holders looks at shards of a job on the nodes that have them.
type holders struct {
	job   string
	nodes []Node
	away  map[string]string         // nodes that cannot be reached, and why
	known map[shard.Digest][]string // that a committed round names
	first map[shard.Digest]string   // the node that is to have a shard, which is asked first
	found map[shard.Digest]string   // the node where it was whole
	look  shardLook
}

// shardLook looks at a shard on one node.
type shardLook func(agent.Shards, context.Context, shard.Digest) (int64, error)

// holders says how to look at the shards of rounds of a job: on whichever node that is not away has one whole.
func (c *Coordinator) holders(job string, rounds []*cluster.Manifest, away map[string]string, look shardLook) *holders {
	return holdersOn(c.nodes(), job, rounds, away, look)
}

// holdersOn is holders of some nodes.
func holdersOn(nodes []Node, job string, rounds []*cluster.Manifest, away map[string]string, look shardLook) *holders {
	h := &holders{job: job, nodes: nodes, away: away, known: map[shard.Digest][]string{}, look: look}
	h.first, h.found = map[shard.Digest]string{}, map[shard.Digest]string{}
	for _, m := range rounds {
		for _, f := range m.Files() {
			h.known[f.Digest] = unique(slices.Concat(h.known[f.Digest], f.Nodes))
		}
	}
	return h
}

// preferring has the node of each stage of a placement asked first, which is to have its shard.
func (h *holders) preferring(p placement, rounds []*cluster.Manifest) *holders {
	for _, m := range rounds {
		for k := range p {
			if len(m.Shards) == len(p) {
				h.first[m.Shards[k].Digest] = p[k].Node
			}
		}
	}
	return h
}

// CheckFiles is CheckRound for a round of a job, by the length of each file on whichever node has it. It may be called concurrently.
func (c *Coordinator) CheckFiles(ctx context.Context, job string, m *cluster.Manifest) error {
	look, err := c.lookNow(ctx, job, []*cluster.Manifest{m})
	if err != nil {
		return err
	}
	return CheckRound(ctx, m, look)
}

// Usable is the newest of some rounds of a job for which CheckFiles finds nothing wrong; nil where there is none.
func (c *Coordinator) Usable(ctx context.Context, job string, rounds []*cluster.Manifest) (*cluster.Manifest, error) {
	look, err := c.lookNow(ctx, job, rounds)
	if err != nil {
		return nil, err
	}
	return NewestUsable(ctx, look, rounds), nil
}

// lookNow looks at the length of files of rounds on the nodes that can be reached now.
func (c *Coordinator) lookNow(ctx context.Context, job string, rounds []*cluster.Manifest) (func(context.Context, shard.Digest) (int64, error), error) {
	var away map[string]string
	if err := c.ask(ctx, func() { away = c.unreached() }); err != nil {
		return nil, err
	}
	return c.holders(job, rounds, away, agent.Shards.Size).one, nil
}

// order puts the node first that is to have a shard, and then those that a round names for it: of many nodes, few are asked that do not have it.
func (h *holders) order(d shard.Digest, n Node) int {
	switch {
	case n.Name == h.first[d]:
		return 0
	case slices.Contains(h.known[d], n.Name):
		return 1
	}
	return 2
}

// one looks at a shard. Where no node that answers has it whole, and one that should does not answer, the error is an obstacle that names
// that node: nothing is said to be lost that may be there. So it is where one that should have it is no member any more.
func (h *holders) one(ctx context.Context, d shard.Digest) (bytes int64, err error) {
	unheard, said := map[string]string{}, 0
	nodes := slices.SortedStableFunc(slices.Values(h.nodes), func(a, b Node) int { return cmp.Compare(h.order(d, a), h.order(d, b)) })
	for _, n := range nodes {
		why, away := h.away[n.Name]
		if !away {
			found, nodeErr := h.look(n.Agent.Shards(h.job), ctx, d)
			switch {
			case nodeErr == nil:
				h.found[d] = n.Name
				return found, nil
			case errors.Is(nodeErr, agent.ErrUnreachable):
				why, away = nodeErr.Error(), true
			default:
				if says := h.says(d, n.Name, nodeErr); says > said {
					err, said = h.at(n.Name, nodeErr), says
				}
			}
		}
		if away {
			unheard[n.Name] = why
		}
	}
	if away := slices.DeleteFunc(slices.Clone(h.known[d]), func(name string) bool { return unheard[name] == "" }); len(away) > 0 {
		return 0, &obstacle.Error{Obstacle: obstacle.Obstacle{Kind: obstacle.Node}, Err: fmt.Errorf(
			"shard %s is on node %s, which cannot be reached: %s", d, strings.Join(away, " and node "), unheard[away[0]])}
	}
	if name := h.left(d); name != "" && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		return 0, &obstacle.Error{Obstacle: obstacle.Obstacle{Kind: obstacle.Node}, Err: fmt.Errorf(
			"shard %s was on node %s, which was removed from the cluster, and is on no other", d, name)}
	}
	if err == nil {
		err = fmt.Errorf("shard %s: no node that could have it can be reached: %w", d, agent.ErrUnreachable)
	}
	return 0, err
}

// says is how much an error of a node says of a shard: that it is not there less than why it cannot be used, and that of a node which a round names more
// than that of another.
func (h *holders) says(d shard.Digest, node string, err error) (weight int) {
	if !errors.Is(err, fs.ErrNotExist) {
		weight = 2
	}
	if slices.Contains(h.known[d], node) {
		return weight + 2
	}
	return weight + 1
}

// at is an error of a node, which is named where there are several.
func (h *holders) at(node string, err error) error {
	if len(h.nodes) < 2 {
		return err
	}
	return &nodeError{node, err}
}

// left is a node that a round names for a shard, and that is no member any more; empty: there is none.
func (h *holders) left(d shard.Digest) string {
	for _, name := range h.known[d] {
		if name != "" && !slices.ContainsFunc(h.nodes, func(n Node) bool { return n.Name == name }) {
			return name
		}
	}
	return ""
}

// NewestWhole returns the newest of a job's rounds that is whole, and what is wrong with newer ones. verify reads a shard through; pass
// says whether to look at an older round after such a fault. Without a whole round it returns nil.
func NewestWhole(
	ctx context.Context, verify func(context.Context, shard.Digest) (int64, error), kept []*cluster.Manifest, pass func(error) bool,
) (*cluster.Manifest, []error, error) {
	var faults []error
	for _, m := range slices.Backward(kept) {
		err := CheckRound(ctx, m, verify)
		if err == nil {
			return m, faults, nil
		}
		if ctx.Err() != nil || !pass(err) {
			return nil, faults, err
		}
		faults = append(faults, err)
	}
	return nil, faults, nil
}

func isDamaged(err error) bool {
	_, damaged := errors.AsType[*damagedRound](err)
	return damaged
}

// chooseRound returns the newest committed round whose shards are whole, nil for the beginning, and the reason of the placement.
// Rounds that are damaged are given up for an older one that is whole. While shards are missing, or no round is whole, nothing is
// given up: the error is an obstacle, and a person may choose (resume).
func (a *act) chooseRound(ctx context.Context) (*cluster.Manifest, string, error) {
	reason := a.decision.reason
	now, err := a.raft.State().Job(a.ID)
	if err != nil {
		return nil, "", err
	}
	if len(now.Committed) == 0 {
		if a.Generation > 0 {
			reason += "; starting over: no round is committed"
		}
		return nil, reason, nil
	}
	trained := make([]*cluster.Manifest, len(now.Committed)) // what is frozen the workers verify, which can make it again
	for i, m := range now.Committed {
		trained[i] = m.Reduced(int(a.spec.Job.Pipelines)).Trained()
	}
	look := a.holders(a.ID, trained, a.away, agent.Shards.Verify).preferring(a.taking, trained)
	a.verified = look.found
	m, faults, err := NewestWhole(ctx, look.one, trained, isDamaged)
	if what := obstacle.Of(err); what != nil && what.Kind == obstacle.Node {
		err = fmt.Errorf("%w; the job goes on once it can%s", err, a.otherwise(ctx, trained[:max(0, len(trained)-1-len(faults))]))
	}
	if err != nil {
		return nil, "", err
	}
	if m == nil {
		return nil, "", &obstacle.Error{Obstacle: obstacle.Obstacle{Kind: obstacle.Damaged}, Err: fmt.Errorf(
			"every kept round is damaged, and nothing is started over without being told to: %w; restore the files and "+
				"`avgpipectl resume %s`, or start over with --from-start", errors.Join(faults...), a.ID)}
	}
	for i, fault := range faults {
		round := now.Committed[len(now.Committed)-1-i].Round
		reason = fmt.Sprintf("round %d was discarded: %v; %s", round, errors.Unwrap(fault), reason)
		a.log.Error("a committed round is damaged", zap.String("job", a.ID), zap.Uint64("round", round), zap.Error(fault))
		a.Say(a.ID, "a committed round is damaged and was discarded", zap.Uint64("round", round), zap.Error(fault))
		err = a.propose(ctx, &cluster.DiscardRound{Job: a.ID, Generation: a.Generation, Round: round, Reason: reason})
		if err != nil {
			return nil, "", err
		}
	}
	return cloned(now.Committed[len(now.Committed)-1-len(faults)]), fmt.Sprintf("%s; resumed from round %d", reason, m.Round), nil
}

// otherwise says how a person may have the job go on that waits for a node: from one of the rounds before that can be read now, if there is one.
func (a *act) otherwise(ctx context.Context, rounds []*cluster.Manifest) string {
	if m := NewestUsable(ctx, a.holders(a.ID, rounds, a.away, agent.Shards.Size).one, rounds); m != nil {
		return fmt.Sprintf(", or from round %d with `avgpipectl resume %s --from-round %d`", m.Round, a.ID, m.Round)
	}
	return "; no other kept round can be read meanwhile, and `avgpipectl resume " + a.ID + " --from-start` starts over"
}

// NewestUsable is the newest of some rounds of a job of which look finds every file; nil where there is none.
func NewestUsable(ctx context.Context, look func(context.Context, shard.Digest) (int64, error), rounds []*cluster.Manifest) *cluster.Manifest {
	m, _, err := NewestWhole(ctx, look, rounds, func(error) bool { return true })
	if err != nil {
		return nil
	}
	return m
}

// digestsOf are those of all files of rounds.
func digestsOf(rounds []*cluster.Manifest) (all []shard.Digest) {
	for _, m := range rounds {
		all = append(all, Digests(m.Files())...)
	}
	return all
}

// Digests are those of a round's shards, or of other files of it.
func Digests(files []cluster.ShardRef) []shard.Digest {
	all := make([]shard.Digest, len(files))
	for i, s := range files {
		all[i] = s.Digest
	}
	return all
}

// Texts joins what is wrong with rounds.
func Texts(faults []error) string {
	all := make([]string, len(faults))
	for i, f := range faults {
		all[i] = f.Error()
	}
	return strings.Join(all, "; ")
}

// cloned is a round whose shards may be changed: those of the replicated state may not.
func cloned(m *cluster.Manifest) *cluster.Manifest {
	out := *m
	out.Shards = slices.Clone(m.Shards)
	return &out
}
