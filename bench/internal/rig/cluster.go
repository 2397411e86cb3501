package rig

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// Port is where daemons of clusters listen.
const Port = ":7440"

const (
	joinBound   = 30 * time.Second // until a host is a member of a cluster
	answerBound = time.Minute      // until a daemon answers that was started
	answerWait  = time.Second      // for one answer
)

// Member is a host that Form makes one of a cluster.
type Member struct {
	Name, Address string // the address without a port
	Config        string // the file of its daemon's configuration
	Client        *api.Client
	Command       func(arguments ...string) *exec.Cmd // the daemon's program, on the host
	Start         func(ctx context.Context)           // starts the daemon
}

// Form makes hosts one cluster, which the first of them begins, and returns when all daemons answer.
func Form(ctx context.Context, members []Member) error {
	for i := range members {
		m, err := &members[i], error(nil)
		if i == 0 {
			err = Execute(ctx, m.Command("init", "--config", m.Config))
		} else {
			err = m.Join(ctx, &members[0])
		}
		if err != nil {
			return err
		}
		m.Start(ctx)
		if i > 0 {
			continue // it joins whom it has heard, while the next one starts
		}
		if err := m.answers(ctx); err != nil {
			return err
		}
	}
	for i := range members {
		if err := members[i].answers(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Join makes a host a member of the cluster, by a token of another one. Its daemon may start then.
func (m *Member) Join(ctx context.Context, via *Member) error {
	token, err := via.Client.Token(ctx, api.TokenRequest{Role: "node", ValidS: joinBound.Seconds()})
	if err != nil {
		return fmt.Errorf("ask for a token: %w", err)
	}
	return Execute(ctx, m.Command("join", via.Address+Port, "--token", token.Token, "--config", m.Config))
}

func (m *Member) answers(ctx context.Context) error {
	return Poll(ctx, answerBound, "an answer of the daemon on "+m.Name, func() bool {
		ctx, cancel := context.WithTimeout(ctx, answerWait)
		defer cancel()
		_, err := m.Client.Version(ctx)
		return err == nil
	})
}

// Execute runs a command to its end, which has to come within the time that it takes to join a cluster.
func Execute(ctx context.Context, command *exec.Cmd) error {
	ctx, cancel := context.WithTimeout(ctx, joinBound)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	defer stop()
	if said, err := command.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, said), ctx.Err())
	}
	return nil
}

// Text is so many lines to train on.
func Text(lines int) []byte {
	var text strings.Builder
	for i := range lines {
		fmt.Fprintf(&text, "%d bottles of beer on wall %d\n", i%100, i*i%37)
	}
	return []byte(text.String())
}

// WorkerIn finds the process of the only job that trains in a daemon's directory.
func WorkerIn(dir string) (int, error) {
	found := Processes("\x00--assignment\x00", dir+"/")
	if len(found) != 1 {
		return 0, fmt.Errorf("find the worker in %s: the processes %v are workers, expected one", dir, found)
	}
	return found[0], nil
}
