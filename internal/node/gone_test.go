package node_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

func TestTheVoteOfAKilledNodeGoesToAnother(t *testing.T) {
	t.Parallel()
	all := form(t, 4, "n2")
	asked, gone := all[0], all[1]
	is := func(name string, state api.NodeState, votes bool) func() bool {
		return func() bool {
			nodes, err := asked.Client.Nodes(t.Context())
			if err != nil || len(nodes) != len(all) {
				return false
			}
			voters, fits := 0, false
			for _, n := range nodes {
				if n.Role != api.RoleNonVoter {
					voters++
				}
				if n.ID == name {
					fits = n.State == state && (votes || n.Role == api.RoleNonVoter)
				}
			}
			return fits && voters == 3
		}
	}
	gone.Kill(t)
	nodetest.Eventually(t, "it is down, and others vote", is(gone.name, api.NodeDown, false))
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "udp", asked.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("what is this?")); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, "a foreign datagram is told of", func() bool {
		text, err := os.ReadFile(filepath.Join(asked.Dir, "daemon.log"))
		return err == nil && strings.Contains(string(text), "datagrams on the port of gossip are dropped")
	})
	gone.start(t, gone.Dir)
	nodetest.Eventually(t, "it is back", is(gone.name, api.NodeAlive, true))
	gone.Signal(t, syscall.SIGSTOP)
	nodetest.Eventually(t, "it is down while it is stopped", is(gone.name, api.NodeDown, true))
	gone.Signal(t, syscall.SIGCONT)
	nodetest.Eventually(t, "it goes on", is(gone.name, api.NodeAlive, true))
}
