package cluster_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// hashOf is a made-up hash.
func hashOf(n int) []byte { return fmt.Appendf(nil, "%032x", n) }

// begun is the state of a cluster with one node.
func begun(t *testing.T) *cluster.State {
	t.Helper()
	s, _, err := cluster.NewState().Apply(1, &cluster.BeginCluster{
		Authority: cluster.Authority{Cluster: "c", Certificates: [][]byte{{1}}, GossipKey: make([]byte, 32)},
		Node:      cluster.Node{Name: "n0", Address: "n0:1", Key: hashOf(0)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTokensAndNodesAreBounded: at its bound the state forgets tokens that have expired, and then refuses.
func TestTokensAndNodesAreBounded(t *testing.T) {
	s, start := begun(t), time.Unix(1700000000, 0)
	apply := func(c cluster.Command) error {
		next, _, err := s.Apply(s.Index+1, c)
		s = next
		return err
	}
	add := func(n int, at time.Time) error {
		return apply(&cluster.AddToken{Token: cluster.Token{Hash: hashOf(n), Role: cluster.TokenNode, Expires: at.Add(time.Hour)}, At: at})
	}
	for n := range cluster.MaxTokens {
		if err := add(n, start); err != nil {
			t.Fatal(err)
		}
	}
	if err := add(-1, start); !errors.Is(err, cluster.ErrTooMany) {
		t.Errorf("a token too many: %v", err)
	}
	for n := 1; n < cluster.MaxNodes; n++ {
		if n == cluster.MaxTokens {
			start = start.Add(2 * time.Hour) // all have expired
		}
		if n >= cluster.MaxTokens {
			if err := add(n, start); err != nil {
				t.Fatal(err)
			}
		}
		if err := apply(joins(n, start)); err != nil {
			t.Fatal(err)
		}
	}
	if err := add(cluster.MaxNodes, start); err != nil {
		t.Fatal(err)
	}
	if err := apply(joins(cluster.MaxNodes, start)); !errors.Is(err, cluster.ErrTooMany) {
		t.Errorf("a node too many: %v", err)
	}
	if len(s.Nodes()) != cluster.MaxNodes {
		t.Errorf("%d nodes", len(s.Nodes()))
	}
	if data := bytesOf(t, s); !bytes.Contains(data, []byte(`"version":3`)) {
		t.Errorf("written as %.40s", data)
	}
}

// joins is a node that joins by the token of its number.
func joins(n int, at time.Time) *cluster.JoinNode {
	return &cluster.JoinNode{Hash: hashOf(n), Node: cluster.Node{Name: fmt.Sprintf("n%d", n), Address: fmt.Sprintf("n%d:1", n), Key: hashOf(n)}, At: at}
}

// TestRefusalsOfMembersCanBeTold by errors.Is.
func TestRefusalsOfMembersCanBeTold(t *testing.T) {
	at := time.Unix(1700000000, 0)
	s := begun(t)
	for i, c := range []struct {
		command cluster.Command
		expect  error
	}{
		{&cluster.AddToken{Token: cluster.Token{Hash: hashOf(1), Role: cluster.TokenNode, Expires: at.Add(time.Hour)}, At: at}, nil},
		{&cluster.AddToken{Token: cluster.Token{Hash: hashOf(2), Role: "view", User: "ada", Expires: at.Add(time.Hour)}, At: at}, nil},
		{joins(3, at), cluster.ErrTokenUnknown},
		{joins(1, at.Add(time.Hour)), cluster.ErrTokenExpired},
		{joins(1, at), nil},
		{joins(1, at.Add(time.Hour)), nil}, // the answer was lost
		{&cluster.JoinNode{Hash: hashOf(1), Node: cluster.Node{Name: "n3", Address: "n3:1", Key: hashOf(3)}, At: at}, cluster.ErrTokenUsed},
		{joins(2, at), cluster.ErrTokenRole},
		{&cluster.DrainNode{Name: "n7"}, cluster.ErrNoNode},
		{&cluster.UpdateNode{Name: "n1", Address: "n0:1"}, cluster.ErrNodeAddress},
		{&cluster.UpdateNode{Name: "n1", Key: hashOf(0)}, cluster.ErrNodeKey},
		{&cluster.RemoveNode{Name: "n1"}, nil},
		{&cluster.RemoveNode{Name: "n0"}, cluster.ErrLastNode},
		{&cluster.BeginCluster{Authority: cluster.Authority{Cluster: "d", Certificates: [][]byte{{1}}, GossipKey: make([]byte, 32)}}, cluster.ErrCluster},
	} {
		next, _, err := s.Apply(s.Index+1, c.command)
		if !errors.Is(err, c.expect) {
			t.Errorf("%d %s: %v, expected %v", i, cluster.Kind(c.command), err, c.expect)
		}
		s = next
	}
	if _, _, err := cluster.NewState().Apply(1, joins(1, at)); !errors.Is(err, cluster.ErrAlone) {
		t.Errorf("alone: %v", err)
	}
}

// TestStatesWithTheSameMembersShareTheirList: who keeps something for each member looks whether it is another list.
func TestStatesWithTheSameMembersShareTheirList(t *testing.T) {
	at, s := time.Unix(1700000000, 0), begun(t)
	for _, c := range []struct {
		command cluster.Command
		nodes   int
		same    bool
	}{
		{&cluster.SubmitJob{Name: "job", File: "job.yaml", Base: "/", Submitted: at, Spec: json.RawMessage("{}")}, 1, true},
		{&cluster.AddToken{Token: cluster.Token{Hash: hashOf(1), Role: cluster.TokenNode, Expires: at.Add(time.Hour)}, At: at}, 1, true},
		{joins(1, at), 2, false},
		{&cluster.DrainNode{Name: "n7"}, 2, true}, // it is refused
		{&cluster.DrainNode{Name: "n1", Reason: "why", By: "ada"}, 2, false},
		{&cluster.RemoveNode{Name: "n1"}, 1, false},
	} {
		before := s.Nodes()
		s, _, _ = s.Apply(s.Index+1, c.command)
		after := s.Nodes()
		if len(after) != c.nodes || (&before[0] == &after[0]) != c.same {
			t.Errorf("%s: %d nodes, in the same list: %v", cluster.Kind(c.command), len(after), &before[0] == &after[0])
		}
	}
}
