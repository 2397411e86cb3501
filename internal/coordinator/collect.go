package coordinator

import (
	"context"
	"maps"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// litter remembers on which nodes shards of a job may lie that no round names. To ask each node of a large cluster after each commit of each job would take the node that
// leads more than everything else. Its methods may be called concurrently.
type litter struct {
	mu sync.Mutex
	of map[string]map[string]bool // by job and node; a job that is not there: nobody knows, as after another node led
}

// suspects are the nodes that may have some of a job, beside those that use some: all of them, where nobody knows. A job that was never placed has none
// anywhere. Those that use some are suspects from now on, until they do not and were asked.
func (l *litter) suspects(j *cluster.Job, use []string, all []Node) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.of[j.ID]
	if at == nil {
		at = map[string]bool{}
		if l.of == nil {
			l.of = map[string]map[string]bool{}
		}
		l.of[j.ID] = at
		for i := range all {
			at[all[i].Name] = j.Generation > 0
		}
	}
	for _, name := range use {
		at[name] = true
	}
	maps.DeleteFunc(at, func(_ string, suspect bool) bool { return !suspect })
	return slices.Sorted(maps.Keys(at))
}

// clean notes that a node has none any more, suspect that it may have some.
func (l *litter) clean(job, node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of[job], node)
}

func (l *litter) suspect(job, node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.of[job]; at != nil { // else all are
		at[node] = true
	}
}

// forget drops what is known of a job.
func (l *litter) forget(job string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, job)
}

// collect takes shards of rounds before one out of the stores of all nodes that may have some, but for those that a committed round or an export still needs. Those that the
// job's own rounds have superseded are deleted; what nobody expected is kept aside for a while. Whatever goes wrong, shards stay, and are collected
// after a later commit.
func (a *act) collect(ctx context.Context, before uint64, superseded []shard.Digest) {
	now, err := a.raft.State().Job(a.ID)
	if err != nil {
		return // it was removed
	}
	c := shard.Collection{Keep: a.pins.all(), Superseded: superseded, Before: before, Generation: a.Generation}
	c.Keep = append(c.Keep, digestsOf(now.Committed)...)
	use := slices.Concat(hosts(now), a.taking.nodes())
	for _, name := range a.litter.suspects(a.Job, slices.Concat(use, hosts(a.Job)), a.nodes()) {
		n, member := a.node(name)
		if !member {
			a.litter.clean(a.ID, name) // it is gone for good
			continue
		}
		if _, away := a.away[name]; away {
			continue
		}
		if _, err := n.Agent.Shards(a.ID).Collect(ctx, c); err != nil {
			a.log.Warn("collect shards; they stay where they are", zap.String("job", a.ID), zap.String("node", name), zap.Error(err))
		} else if !slices.Contains(use, name) {
			a.litter.clean(a.ID, name)
		}
	}
}
