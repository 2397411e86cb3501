package coordinator

import (
	"context"
	"slices"
	"sync"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/job"
)

// Remove has an ended job removed.
func (c *Coordinator) Remove(ctx context.Context, id, reason string) error {
	return c.ask(ctx, func() {
		if o := c.job(id); o.remove == "" {
			o.remove = reason
		}
	})
}

// Resumed makes known that somebody wants a job to go on: whether what it waited for has passed is seen by trying.
func (c *Coordinator) Resumed(ctx context.Context, id string) error {
	return c.ask(ctx, func() {
		o := c.job(id)
		o.deaths = 0
		if o.hold != nil {
			o.hold = &hold{obstacle: o.hold.obstacle, node: o.hold.node, named: o.hold.named, passed: true}
		}
	})
}

// reserve takes cores and GPUs that are free for a tuning of no job, or says why it cannot. Jobs that are queued do not wait for it, nor it for them.
func (c *Coordinator) reserve(ctx context.Context, need, gpus int) (at placement, why string, err error) {
	err = c.ask(ctx, func() { //nolint:contextcheck // as Run
		s := c.snapshot(c.raft.State(), false)
		n := roomOf(s.rooms, c.here.Name)
		free := resources{n.Cores, n.GPUs}
		if need > len(free.cores) {
			why = "waiting for cores: " + coreNeed(need, len(free.cores), len(c.here.Cores))
			return
		}
		if gpus > len(free.gpus) {
			why = "waiting for GPUs: " + gpuNeed(gpus, job.GPU{}, len(free.gpus), c.here.gpus())
			return
		}
		at = tuningPlace(c.here.Name, free, need, gpus)
		c.reserved = append(c.reserved, at...)
	})
	return at, why, err
}

// release makes what was reserved free.
func (c *Coordinator) release(ctx context.Context, at placement) {
	_ = c.ask(ctx, func() { // fails only once the coordinator has stopped
		c.reserved = slices.DeleteFunc(c.reserved, func(held stagePlace) bool { return slices.ContainsFunc(at, held.equal) })
	})
}

// pins are the shards that exports read.
type pins struct {
	mu    sync.Mutex
	count map[shard.Digest]int
}

// Pin returns the committed rounds of a job, whose shards stay until Unpin.
func (c *Coordinator) Pin(id string) []*cluster.Manifest {
	c.pins.mu.Lock()
	defer c.pins.mu.Unlock()
	j, err := c.raft.State().Job(id) // under the lock: collect reads the pins after the state
	if err != nil {
		return nil
	}
	c.pins.add(j.Committed, 1)
	return j.Committed
}

// Unpin lets go of what Pin returned.
func (c *Coordinator) Unpin(kept []*cluster.Manifest) {
	c.pins.mu.Lock()
	defer c.pins.mu.Unlock()
	c.pins.add(kept, -1)
}

// add counts the shards of rounds. The caller holds the lock.
func (p *pins) add(rounds []*cluster.Manifest, n int) {
	if p.count == nil {
		p.count = map[shard.Digest]int{}
	}
	for _, d := range digestsOf(rounds) {
		if p.count[d] += n; p.count[d] == 0 {
			delete(p.count, d)
		}
	}
}

// all lists the shards that an export reads now.
func (p *pins) all() []shard.Digest {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]shard.Digest, 0, len(p.count))
	for d := range p.count {
		all = append(all, d)
	}
	return all
}

// holds reports whether an export reads a round of the job.
func (p *pins) holds(j *cluster.Job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(j.Committed, func(m *cluster.Manifest) bool { return p.count[m.Shards[0].Digest] > 0 })
}
