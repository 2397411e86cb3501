package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// start starts the daemons. Where they are several, they become one cluster.
func (w *testbed) start(ctx context.Context) error {
	first := w.hosts[0]
	if first.on == nil {
		first.start(ctx)
		return nil
	}
	if err := w.execute(ctx, first.command("init", "--config", first.config())); err != nil {
		return err
	}
	first.start(ctx)
	if err := first.answers(ctx); err != nil {
		return err
	}
	for _, h := range w.hosts[1:] {
		if err := h.join(ctx, first); err != nil {
			return err
		}
		h.start(ctx)
	}
	if err := w.answers(ctx); err != nil {
		return err
	}
	return w.vote(ctx)
}

// join makes a host a member of the cluster, by a token of another one. Its daemon may start then.
func (h *host) join(ctx context.Context, via *host) error {
	token, err := via.client.Token(ctx, api.TokenRequest{Role: "node", ValidS: joinBound.Seconds()})
	if err != nil {
		return fmt.Errorf("ask for a token: %w", err)
	}
	return h.execute(ctx, h.command("join", via.on.Address+port, "--token", token.Token, "--config", h.config()))
}

// vote waits until all hosts vote.
func (w *testbed) vote(ctx context.Context) error {
	return rig.Poll(ctx, voteBound, "a cluster whose nodes all vote", func() bool { return w.whole(ctx) })
}

// execute runs a command to its end.
func (w *testbed) execute(ctx context.Context, command *exec.Cmd) error {
	ctx, cancel := context.WithTimeout(ctx, joinBound)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	defer stop()
	if said, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, said)
	}
	return nil
}
