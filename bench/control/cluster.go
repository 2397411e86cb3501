package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// How long the cluster may take for what is not measured.
const (
	answerBound = 30 * time.Second
	formBound   = 5 * time.Minute
	stopBound   = time.Minute
	sayEvery    = 5 * time.Second // at most, while nodes join
)

// testbed is the real nodes and the herd.
type testbed struct {
	dir    string // of the nodes that vote, on a disk
	memory string // of the herd
	voters []*voter
	herd   *exec.Cmd
	places io.Closer // that the herd reads which nodes to be from
}

// voter is a node with a process of its own.
type voter struct {
	place
	client  *api.Client
	command *exec.Cmd
}

// shm is a file system in memory: the pretended nodes would otherwise share one disk, which they would have each.
const shm = "/dev/shm"

// newTestbed makes the directories.
func newTestbed() (c *testbed, err error) {
	c = &testbed{}
	if c.dir, err = os.MkdirTemp("", "control-"); err != nil {
		return nil, err
	}
	if c.memory, err = os.MkdirTemp(shm, "control-"); err != nil {
		return nil, errors.Join(err, os.RemoveAll(c.dir))
	}
	return c, nil
}

// address is where a node listens. Each has an address of its own on the loopback interface.
func address(group, i int) string { return fmt.Sprintf("127.77.%d.%d:7700", group, i+1) }

// form starts all nodes and waits until each is a member that answers.
func (c *testbed) form(ctx context.Context, o options, say func(string)) error {
	first := place{Name: "v1", Dir: filepath.Join(c.dir, "v1"), Address: address(0, 0)}
	if err := os.Mkdir(first.Dir, 0o750); err != nil {
		return err
	}
	if _, err := node.Init(first.Dir, first.Name); err != nil {
		return err
	}
	if err := c.startVoter(ctx, first); err != nil {
		return err
	}
	for i := 1; i < o.voters; i++ {
		p, err := c.invite(ctx, fmt.Sprintf("v%d", i+1), c.dir, address(0, i))
		if err == nil {
			err = p.join(ctx)
		}
		if err == nil {
			err = c.startVoter(ctx, p)
		}
		if err != nil {
			return err
		}
	}
	if err := c.until(ctx, formBound, "the nodes vote", func(n api.NodeStatus) bool { return n.Role != api.RoleNonVoter }, o.voters); err != nil {
		return err
	}
	for _, v := range c.voters { // no job runs there: their workers would be processes
		if _, err := c.voters[0].client.Drain(ctx, v.Name, api.DrainRequest{Reason: "it only votes"}); err != nil {
			return err
		}
	}
	return c.startHerd(ctx, o.nodes, say)
}

// invite makes a directory for a node, and asks for its token.
func (c *testbed) invite(ctx context.Context, name, dir, address string) (p place, err error) {
	p = place{Name: name, Dir: filepath.Join(dir, name), Address: address, Ask: []string{c.voters[0].Address}}
	if err := os.Mkdir(p.Dir, 0o750); err != nil {
		return p, err
	}
	token, err := c.voters[0].client.Token(ctx, api.TokenRequest{Role: "node", ValidS: formBound.Seconds()})
	if err != nil {
		return p, fmt.Errorf("a token for %s: %w", name, err)
	}
	p.Token = token.Token
	return p, nil
}

// launch starts this program as something else, which may read something.
func launch(log, what, argument string, in io.Reader) (*exec.Cmd, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()                                         //nolint:errcheck // the process has its own descriptor
	command := exec.Command("/proc/self/exe", what, argument) //nolint:noctx,gosec // this program, which is ended in order
	command.Args[0], command.Stdin, command.Stdout, command.Stderr = os.Args[0], in, out, out
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command, command.Start()
}

func (c *testbed) startVoter(ctx context.Context, p place) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	v := &voter{place: p, client: api.NewClient(nodetest.Socket(p.Dir))}
	if v.command, err = launch(p.Dir+".log", "node", string(text), nil); err != nil {
		return err
	}
	c.voters = append(c.voters, v)
	return rig.Poll(ctx, answerBound, "an answer of "+p.Name, func() bool { _, err := v.client.Version(ctx); return err == nil })
}

// until waits until something holds of so many nodes.
func (c *testbed) until(ctx context.Context, bound time.Duration, what string, holds func(api.NodeStatus) bool, count int) error {
	found := 0
	err := rig.Poll(ctx, bound, what, func() bool {
		pause(ctx, 200*time.Millisecond)
		nodes, err := c.voters[0].client.Nodes(ctx)
		found = 0
		for _, n := range nodes {
			if holds(n) {
				found++
			}
		}
		return err == nil && found >= count
	})
	if err != nil {
		err = fmt.Errorf("%w: %d of %d; %s", err, found, count, c.complaints())
	}
	return err
}

// complaints is the end of the herd's log.
func (c *testbed) complaints() string {
	text, _ := os.ReadFile(filepath.Join(c.dir, "herd.log")) // without it, less is known
	return strings.TrimSpace(string(text[max(0, len(text)-1000):]))
}

// leader is the node that leads.
func (c *testbed) leader(ctx context.Context) (*voter, error) {
	nodes, err := c.voters[0].client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		for _, v := range c.voters {
			if n.Leader && v.Name == n.ID {
				return v, nil
			}
		}
	}
	return nil, errors.New("no node with a process of its own leads")
}

// end ends all processes, and removes what they have left.
func (c *testbed) end() (err error) {
	if c.herd != nil {
		err = errors.Join(c.places.Close(), stop(c.herd))
	}
	for _, v := range c.voters {
		v.client.Close()
		err = errors.Join(err, stop(v.command))
	}
	return errors.Join(err, os.RemoveAll(c.dir), os.RemoveAll(c.memory))
}

// stop ends a process in order, or at once where that takes too long.
func stop(command *exec.Cmd) error {
	if err := command.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = command.Wait() // it was killed
	return nil
}
