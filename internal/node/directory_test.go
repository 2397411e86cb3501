package node

import (
	"errors"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/envtest"
)

// TestADaemonThatHasJustStartedWaitsForItsMembers: the node that leads may ask it to copy from one before it has the state of the cluster.
func TestADaemonThatHasJustStartedWaitsForItsMembers(t *testing.T) {
	t.Parallel()
	log, err := raftlog.Open(raftlog.Config{Dir: t.TempDir(), NodeID: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := log.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := &node{raft: log, started: time.Now().Add(-time.Hour)}
	if err := n.knows("n1", time.Minute); !errors.Is(err, cluster.ErrNoNode) {
		t.Errorf("long after its start: %v", err)
	}
	n.started = time.Now().Add(time.Hour) // the host is slow, and this test is not of that
	asked := make(chan error, 1)
	go func() { asked <- n.knows("n1", time.Minute) }()
	if _, err := log.Apply(t.Context(), &cluster.BeginCluster{
		Authority: cluster.Authority{Cluster: "c", Certificates: [][]byte{{1}}, GossipKey: make([]byte, 16)},
		Node:      cluster.Node{Name: "n1", Address: "192.0.2.1:7700", Key: make([]byte, 32), Joined: time.Now()},
	}); err != nil {
		t.Fatal(err)
	}
	if err := envtest.Receive(t, "the member is known", asked); err != nil {
		t.Errorf("a member that comes to be known: %v", err)
	}
	if err := n.knows("n9", time.Millisecond); !errors.Is(err, cluster.ErrNoNode) {
		t.Errorf("who is no member: %v", err)
	}
}
