package main

import (
	"context"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// start starts the daemons. Where they are several, they become one cluster.
func (w *testbed) start(ctx context.Context) error {
	if first := w.hosts[0]; first.on == nil {
		first.start(ctx)
		return nil
	}
	var members []rig.Member
	for _, h := range w.hosts {
		members = append(members, h.member())
	}
	if err := rig.Form(ctx, members); err != nil {
		return err
	}
	return w.vote(ctx)
}

// member is the host as a member of the cluster.
func (h *host) member() rig.Member {
	return rig.Member{Name: h.name, Address: h.on.Address, Config: h.config(), Client: h.client, Command: h.command, Start: h.start}
}

// join makes a host a member of the cluster, by a token of another one. Its daemon may start then.
func (h *host) join(ctx context.Context, via *host) error {
	m, of := h.member(), via.member()
	return m.Join(ctx, &of)
}

// vote waits until all hosts vote.
func (w *testbed) vote(ctx context.Context) error {
	return rig.Poll(ctx, voteBound, "a cluster whose nodes all vote", func() bool { return w.whole(ctx) })
}
