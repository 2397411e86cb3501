package node

import (
	"context"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/remotedata"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/words"
)

// openFetched opens what fetches data for jobs, and keeps copies. The caller closes it.
func (n *node) openFetched() (closeIt func()) {
	remote := remotedata.New(n.config.Sources)
	n.copies = remotedata.OpenCache(remotedata.CacheConfig{
		Dir: agent.DataDir(n.config.StateDir), Limit: n.copiesLimit, InUse: n.copiesInUse, Open: remote.Open, Allowed: remote.Allowed, Log: n.log,
	})
	n.inspect.Resolve = remote.Resolve
	return func() {
		n.copies.Close()
		remote.Close()
	}
}

// fetch implements agent.Config.Fetch.
func (n *node) fetch(s *spec.Spec) agent.Sight { return sightOf(n.copies.Want(s.User, s.Remote)) }

// sightOf says of what a job waits for.
func sightOf(p remotedata.Progress) agent.Sight {
	switch kind := objectstore.KindOf(p.Err); {
	case p.Left == 0:
		return agent.Sight{}
	case p.Err == nil:
		return agent.Sight{Fetching: fmt.Sprintf("%s of %s of its data have been fetched", words.Bytes(p.Done), words.Bytes(p.Total))}
	case kind == objectstore.Changed:
		why := fmt.Sprintf("data.files: %v: it is not what it was when the job was submitted; restore it, or submit the job anew", p.Err)
		return agent.Sight{Data: why, Gone: why}
	case kind == objectstore.Differs: // to submit the same job anew would not help
		why := fmt.Sprintf("data.files: %v, else restore it, and submit the job anew", p.Err)
		return agent.Sight{Data: why, Gone: why}
	case kind == objectstore.Unavailable:
		return agent.Sight{Data: fmt.Sprintf("data.files: %v; it is tried again", p.Err)}
	}
	return agent.Sight{Data: fmt.Sprintf("data.files: %v; this does not pass by itself", p.Err)}
}

// copiesLimit is what copies may take.
func (n *node) copiesLimit() int64 {
	limit := n.config.DataCache.Bytes
	if share := n.config.DataCache.Share; share > 0 {
		if _, size, err := n.agent.Disk(context.Background()); err == nil {
			limit = int64(share * float64(size))
		}
	}
	return limit
}

// copiesInUse are the ids of what jobs read that have not ended.
func (n *node) copiesInUse() map[string]bool {
	used := map[string]bool{}
	for _, j := range n.raft.State().Jobs() {
		if j.State.Ended() {
			continue
		}
		if s, err := n.coordinator().Spec(j); err == nil {
			for i := range s.Remote {
				used[s.Remote[i].ID()] = true
			}
		}
	}
	return used
}
