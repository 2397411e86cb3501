package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/shard"
)

const (
	objectNodes = 3               // that keep a small file of a job, the coordinator's own among them
	objectBound = 5 * time.Second // for one of them to keep or to read it
)

// Keep keeps a small file of a job, such as its source, on up to three nodes. It fails where the coordinator's own cannot; the others may.
// It may be called concurrently.
func (c *Coordinator) Keep(ctx context.Context, job string, object []byte) (shard.Digest, error) {
	state := c.raft.State()
	j, err := state.Job(job)
	if err != nil {
		return "", err
	}
	nodes := slices.DeleteFunc(slices.Clone(c.nodes()), func(n Node) bool { return n.Name != c.here.Name && !n.Reach.Since.IsZero() })
	var digest shard.Digest
	faults := make([]error, min(objectNodes, len(nodes)))
	all := make([]func(), len(faults))
	for i, n := range nodes[:len(faults)] {
		all[i] = func() {
			ctx, cancel := context.WithTimeout(ctx, objectBound)
			defer cancel()
			own := n.Name == c.here.Name
			if !own {
				faults[i] = c.recordAt(ctx, n, j, false, state)
			}
			var kept shard.Digest
			if faults[i] == nil {
				kept, faults[i] = n.Agent.Keep(ctx, job, object)
			}
			if own {
				digest = kept
			}
		}
	}
	c.together(all)
	return digest, faults[0]
}

// Object reads a small file of a job from whichever node has it, the coordinator's own first. An absent one wraps fs.ErrNotExist only where all
// nodes were asked. It may be called concurrently.
func (c *Coordinator) Object(ctx context.Context, job string, d shard.Digest) ([]byte, error) {
	var missing, fault error
	for _, n := range c.nodes() {
		if n.Name != c.here.Name && !n.Reach.Since.IsZero() {
			fault = cmp.Or(fault, fmt.Errorf("node %s: %w", n.Name, agent.ErrUnreachable))
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, objectBound)
		text, err := n.Agent.Object(bounded, job, d)
		cancel()
		switch {
		case err == nil:
			return text, nil
		case errors.Is(err, fs.ErrNotExist):
			missing = cmp.Or(missing, err)
		default:
			fault = cmp.Or(fault, fmt.Errorf("node %s: %w", n.Name, err))
		}
	}
	return nil, fmt.Errorf("read a file of job %s: %w", job, cmp.Or(fault, missing))
}
