package node_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/mux"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/pki"
)

// as starts the daemon of a node again, as another program that speaks some versions of the protocols between nodes.
func (h *host) as(t *testing.T, oldest, newest int) {
	t.Helper()
	h.Stop(t)
	h.Daemon = nodetest.Start(t, h.Dir, func(c *node.Config) {
		c.NodeID, c.Listen, c.Protocols = h.name, h.address, mux.Versions{Oldest: oldest, Newest: newest}
	})
}

// stateOf is how a node is, as another one knows.
func stateOf(t *testing.T, asked *host, name string) (api.NodeStatus, bool) {
	t.Helper()
	nodes, err := asked.Client.Nodes(t.Context())
	if err != nil {
		return api.NodeStatus{}, false
	}
	for _, n := range nodes {
		if n.ID == name {
			return n, true
		}
	}
	return api.NodeStatus{}, false
}

// TestNodesOfAdjacentVersionsAreOneCluster, all through an update, and one of another major version is refused in place: by the others, and by itself.
func TestNodesOfAdjacentVersionsAreOneCluster(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	see := func(asked *host, name string, state api.NodeState, why string) {
		t.Helper()
		nodetest.Eventually(t, asked.name+" sees "+name+" "+string(state), func() bool {
			s, ok := stateOf(t, asked, name)
			return ok && s.State == state && strings.Contains(s.Reason, why)
		})
	}
	for _, h := range all {
		h.as(t, 1, 2)
		for _, other := range all {
			see(other, h.name, api.NodeAlive, "")
		}
		token(t, h, "node") // a change, through it
	}
	changed := all[2]
	changed.as(t, 2, 3)
	see(all[0], changed.name, api.NodeAlive, "")
	token(t, changed, "node")
	changed.as(t, 3, 4)
	see(all[0], changed.name, api.NodeDown, "another major version of avgpiped")
	nodetest.Eventually(t, "it knows why", func() bool { // it was started since, and nobody knows how old what it has is
		_, err := changed.Client.Jobs(t.Context())
		return err != nil && strings.Contains(err.Error(), "run another major version of avgpiped than node "+changed.name)
	})
	changed.as(t, 1, 2)
	see(all[0], changed.name, api.NodeAlive, "")
	for _, h := range all {
		h.Stop(t)
	}
	for who, want := range map[*host]string{all[0]: "it speaks version 3 to 4 of avgpipe-", changed: "it speaks version 1 to 2 of avgpipe-"} {
		if text := audits(t, who); !strings.Contains(text, want) {
			t.Errorf("the audit log of %s lacks %q", who.name, want)
		}
	}
}

// TestANodeOfAnotherMajorVersionMayNotJoin: both ends say why, and nothing is spent.
func TestANodeOfAnotherMajorVersionMayNotJoin(t *testing.T) {
	t.Parallel()
	all := form(t, 1)
	once := token(t, all[0], "node")
	parsed, err := pki.ParseToken(once)
	if err != nil {
		t.Fatal(err)
	}
	_, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	_, err = pki.Join(t.Context(), all[0].address, parsed, pki.JoinRequest{CSR: csr, Node: "n2", Address: envtest.FreeAddress(t), Speaks: mux.Versions{Oldest: 3, Newest: 4}})
	if _, refused := errors.AsType[*pki.JoinError](err); !refused || !strings.Contains(err.Error(), "another major version of avgpiped") {
		t.Errorf("who joins is told %v", err)
	}
	if _, err := node.Join(t.Context(), nodetest.StateDir(t), "n2", envtest.FreeAddress(t), "test", once, []string{all[0].address}); err != nil {
		t.Errorf("the token was spent: %v", err)
	}
	all[0].Stop(t)
	if text := audits(t, all...); !strings.Contains(text, `"operation":"connect","error":"it speaks version 3 to 4 of avgpipe-join, this node 1: it is a node of another major version`) {
		t.Errorf("the audit log: %s", text)
	}
}
