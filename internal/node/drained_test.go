package node_test

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// TestNodesAreDrainedAndRemoved: what only a node has of jobs is copied to others before it is drained, and what would be lost keeps it from being removed.
func TestNodesAreDrainedAndRemoved(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	first, others := leader(t, all)
	gone := others[1]
	state := func(h *host) api.NodeState {
		nodes, err := others[0].Client.Nodes(t.Context())
		if err != nil {
			return ""
		}
		for _, n := range nodes {
			if n.ID == h.name {
				return n.State
			}
		}
		return "removed"
	}
	done := func(what string, do func() ([]api.NodeStatus, error)) { // a busy host may have no leader for a moment
		t.Helper()
		nodetest.Eventually(t, what, func() bool { _, err := do(); return err == nil })
	}
	drain := func(name string) {
		t.Helper()
		done(name+" is to be drained", func() ([]api.NodeStatus, error) {
			return others[0].Client.Drain(t.Context(), name, api.DrainRequest{Reason: "new disk"})
		})
	}
	undrain := func(name string) {
		t.Helper()
		done(name+" is resumed", func() ([]api.NodeStatus, error) { return first.Client.Undrain(t.Context(), name) })
	}
	if _, err := first.Client.RemoveNode(t.Context(), gone.name, false); err == nil || !strings.Contains(err.Error(), "drain it first") {
		t.Errorf("a node that is alive is removed: %v", err)
	}
	for _, h := range []*host{first, others[0]} { // so that the job's only copy is on the third
		drain(h.name)
	}
	id := first.Submit(t, nodetest.Job(t, first.Dir, "good", 20))
	first.Until(t, id, "ends", ended)
	for _, h := range []*host{first, others[0]} {
		undrain(h.name)
	}
	gone.Stop(t)
	nodetest.Eventually(t, "a node that has the only copy of a round is not removed", func() bool {
		_, err := first.Client.RemoveNode(t.Context(), gone.name, false)
		return err != nil && strings.Contains(err.Error(), "of jobs "+id+" (good), which would be lost")
	})
	gone.start(t, gone.Dir)
	nodetest.Eventually(t, "it is back", func() bool { return state(gone) == api.NodeAlive })
	drain(gone.name)
	nodetest.Eventually(t, "it is drained", func() bool { return state(gone) == api.NodeDrained })
	undrain(gone.name)
	nodetest.Eventually(t, "it takes jobs again", func() bool { return state(gone) == api.NodeAlive })
	if _, err := first.Client.Drain(t.Context(), "n9", api.DrainRequest{}); err == nil || !strings.Contains(err.Error(), "no such node") {
		t.Errorf("a node that is not there is drained: %v", err)
	}
	drain(gone.name)
	nodetest.Eventually(t, "it is drained again", func() bool { return state(gone) == api.NodeDrained })
	nodetest.Eventually(t, "it is removed", func() bool {
		_, err := first.Client.RemoveNode(t.Context(), gone.name, false)
		return err == nil || strings.Contains(err.Error(), "no such node") // where the first answer was lost
	})
	nodetest.Eventually(t, "one node votes", func() bool {
		nodes, err := first.Client.Nodes(t.Context())
		votes := 0
		for _, n := range nodes {
			if n.Role != api.RoleNonVoter {
				votes++
			}
		}
		return err == nil && len(nodes) == 2 && votes == 1
	})
	gone.Stop(t)
	if names := modelFiles(t, first.Daemon, id); len(names) != 2 { // it was copied before
		t.Errorf("the model is %v", names)
	}
}
