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
		token, err := first.client.Token(ctx, api.TokenRequest{Role: "node", ValidS: joinBound.Seconds()})
		if err != nil {
			return fmt.Errorf("ask for a token: %w", err)
		}
		if err := w.execute(ctx, h.command("join", first.on.Address+port, "--token", token.Token, "--config", h.config())); err != nil {
			return err
		}
		h.start(ctx)
	}
	for _, h := range w.hosts {
		if err := h.answers(ctx); err != nil {
			return err
		}
	}
	return rig.Poll(ctx, joinBound, "a cluster whose nodes all vote", func() bool {
		nodes, err := first.client.Nodes(ctx)
		voters := 0
		for _, n := range nodes {
			if n.Role != api.RoleNonVoter {
				voters++
			}
		}
		return err == nil && voters == len(w.hosts)
	})
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
