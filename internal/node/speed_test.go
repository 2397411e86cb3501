package node_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// TestNodesSayHowFastTheyAndTheirLinksAre, as measured.
func TestNodesSayHowFastTheyAndTheirLinksAre(t *testing.T) {
	all := form(t, 2)
	var nodes []api.NodeStatus
	nodetest.Eventually(t, "both nodes and their link are measured", func() bool {
		var err error
		nodes, err = all[0].Client.Nodes(t.Context())
		return err == nil && len(nodes) == 2 && len(nodes[0].Links) == 1 && len(nodes[1].Links) == 1 && nodes[0].GFLOPs == 50 && nodes[1].GFLOPs == 50
	})
	for i, n := range nodes {
		if l := n.Links[0]; l.Node != nodes[1-i].ID || l.BitsPerS <= 0 || l.RoundTripS <= 0 {
			t.Errorf("the link of %s is %+v", n.ID, l)
		}
	}
}
