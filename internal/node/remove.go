package node

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/server"
)

// Remove implements server.Backend.
func (n *node) Remove(ctx context.Context, ref string, by server.Peer) (api.JobStatus, error) {
	j, err := n.find(ref)
	if err != nil {
		return api.JobStatus{}, err
	}
	last, err := n.Job(ctx, j.ID)
	if err != nil {
		return last, err
	}
	if !j.State.Ended() {
		return last, api.Errorf(http.StatusConflict, "remove job %s (%s): it is %s: cancel it first (avgpipectl cancel %s), or let --force do so",
			j.ID, j.Name, j.State, j.ID)
	}
	if err := n.coordinator.Remove(ctx, j.ID, by.String()+" asked for it"); err != nil {
		return last, api.Errorf(http.StatusServiceUnavailable, "remove job %s: %v", j.ID, err)
	}
	for {
		state, changed := n.raft.Changed()
		if !slices.ContainsFunc(state.Jobs(), func(now *cluster.Job) bool { return now.ID == j.ID }) {
			return last, nil
		}
		select {
		case <-changed:
		case <-n.coordinator.Stopping():
			return last, api.Errorf(http.StatusServiceUnavailable, "remove job %s: the daemon is stopping", j.ID)
		case <-ctx.Done():
			return last, fmt.Errorf("remove job %s: %w: %s", j.ID, ctx.Err(), n.coordinator.Published().Jobs[j.ID].Note)
		}
	}
}
