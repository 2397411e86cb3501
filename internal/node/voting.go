package node

import (
	"context"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/pki"
)

// configureRaft brings Raft's configuration to the members, one change after the other. Who votes is autopilot's.
func (n *node) configureRaft(ctx context.Context) error {
	for {
		if changed, err := n.changeRaft(ctx); err != nil || !changed {
			return err
		}
	}
}

// changeRaft makes one change at most that brings Raft's configuration nearer to the members.
func (n *node) changeRaft(ctx context.Context) (changed bool, err error) {
	state := n.raft.State()
	members, err := n.raft.Members()
	if err != nil || state.Authority() == nil {
		return false, err
	}
	for _, m := range members {
		node, err := state.Node(m.Name)
		switch {
		case err != nil && m.Name != n.id:
			n.log.Info("a node takes no part in Raft any more", zap.String("member", m.Name))
			return true, n.raft.RemoveNode(ctx, m.Name)
		case err == nil && node.Address != m.Address:
			return true, n.raft.AddNode(ctx, m.Name, node.Address, false) // it keeps its vote
		}
	}
	for _, node := range state.Nodes() {
		if !slices.ContainsFunc(members, func(m raftlog.Member) bool { return m.Name == node.Name }) {
			n.log.Info("a node follows", zap.String("member", node.Name), zap.String("address", node.Address))
			return true, n.raft.AddNode(ctx, node.Name, node.Address, false)
		}
	}
	return false, nil
}

// keepVoters decides who votes, while this node leads.
func (n *node) keepVoters(ctx context.Context) {
	err := n.raft.RunAutopilot(ctx, raftlog.AutopilotConfig{Servers: n.servers, Prepare: n.giveKey, Log: n.log})
	if err != nil {
		n.log.Error("nobody decides who votes", zap.Error(err))
	}
}

// servers are the nodes as autopilot is to know them.
func (n *node) servers() (all []raftlog.Server) {
	heard, now := n.member.gossip.members(), time.Now()
	for _, node := range n.raft.State().Nodes() {
		seen, _ := n.seen.get(node.Name)
		state, _ := judge(heard[node.Name], seen, now)
		s := raftlog.Server{Name: node.Name, Alive: state != api.NodeDown, Draining: node.Draining, Known: !seen.at.IsZero(), Progress: seen.status.Progress}
		s.Progress.LastContact += seen.silent(now)
		all = append(all, s)
	}
	return all
}

// giveKey hands the authority's key to a node that is to vote.
func (n *node) giveKey(ctx context.Context, name string) error {
	key, err := pki.ReadAuthorityKey(n.member.dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return n.ask(ctx, name, http.MethodPost, pathKey, key, &struct{}{})
}
