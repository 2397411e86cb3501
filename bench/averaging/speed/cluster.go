package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/hosts"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// The bounds of waits. Nothing waits this long unless something is broken, or the machine does far more than this.
const (
	startBound = time.Minute
	joinBound  = time.Minute
	stopBound  = time.Minute
)

// port is where daemons listen.
const port = ":7440"

// corpus is the data file of jobs and of the peer.
const corpus = "corpus.txt"

// cluster is hosts in network namespaces, a daemon on each, joined by links of a rate.
type cluster struct {
	program string
	dir     string
	network *hosts.Network
	nodes   []*node
}

// node is one of them.
type node struct {
	on     *hosts.Host
	dir    string
	client *api.Client
	daemon *rig.Supervisor // nil until it is started
}

// newCluster makes hosts and links and starts the daemons. Whoever gets an error has nothing to close.
func newCluster(ctx context.Context, program string, replicas int, bits int64) (c *cluster, err error) {
	dir, err := os.MkdirTemp("", "speed-") // short, for sockets
	if err != nil {
		return nil, err
	}
	c = &cluster{program: program, dir: dir}
	defer func() {
		if err != nil {
			c, err = nil, errors.Join(err, c.close(ctx))
		}
	}()
	var text strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&text, "%d bottles of beer on wall %d\n", i%100, i*i%37)
	}
	if err := os.WriteFile(c.corpus(), []byte(text.String()), 0o600); err != nil {
		return c, err
	}
	var names []string
	for i := range replicas {
		names = append(names, string(rune('a'+i)))
	}
	if c.network, err = hosts.New(ctx, names...); err != nil {
		return c, err
	}
	for _, on := range c.network.Hosts() {
		if err := c.network.Limit(ctx, on.Name, bits); err != nil {
			return c, err
		}
		n := &node{on: on, dir: filepath.Join(dir, on.Name)}
		n.client = api.NewClient(filepath.Join(n.dir, "sock"))
		c.nodes = append(c.nodes, n)
		config := fmt.Sprintf("state_dir: %s\nsocket: %s\nnode: %s\nlisten: %s\n", n.state(), filepath.Join(n.dir, "sock"), on.Name, on.Address+port)
		if err := errors.Join(os.MkdirAll(n.state(), 0o750), os.WriteFile(n.config(), []byte(config), 0o600)); err != nil {
			return c, err
		}
	}
	return c, c.start(ctx)
}

func (c *cluster) corpus() string { return filepath.Join(c.dir, corpus) }
func (n *node) state() string     { return filepath.Join(n.dir, "state") }
func (n *node) config() string    { return filepath.Join(n.dir, "avgpiped.yaml") }

// start starts the daemons and makes them one cluster.
func (c *cluster) start(ctx context.Context) error {
	first := c.nodes[0]
	for i, n := range c.nodes {
		arguments := []string{"init", "--config", n.config()}
		if i > 0 {
			token, err := first.client.Token(ctx, api.TokenRequest{Role: "node", ValidS: joinBound.Seconds()})
			if err != nil {
				return fmt.Errorf("ask for a token: %w", err)
			}
			arguments = []string{"join", first.on.Address + port, "--token", token.Token, "--config", n.config()}
		}
		if err := execute(ctx, n.on.Command(c.program, arguments...)); err != nil {
			return err
		}
		n.daemon = rig.Supervise(ctx, rig.SupervisorConfig{
			Command: func() *exec.Cmd { return n.on.Command(c.program, "--config", n.config()) }, Log: filepath.Join(n.dir, "daemon.log"), Bound: stopBound,
		})
		if err := rig.Poll(ctx, startBound, "an answer of the daemon on "+n.on.Name, func() bool { _, err := n.client.Version(ctx); return err == nil }); err != nil {
			return err
		}
	}
	return rig.Poll(ctx, joinBound, "a cluster whose nodes are all there", func() bool {
		nodes, err := first.client.Nodes(ctx)
		alive := 0
		for _, n := range nodes {
			if n.State == api.NodeAlive {
				alive++
			}
		}
		return err == nil && alive == len(c.nodes)
	})
}

// execute runs a command to its end.
func execute(ctx context.Context, command *exec.Cmd) error {
	ctx, cancel := context.WithTimeout(ctx, joinBound)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	defer stop()
	if said, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, said)
	}
	return nil
}

// close ends the daemons and takes the network and all files away.
func (c *cluster) close(ctx context.Context) (err error) {
	for _, n := range c.nodes {
		if n.daemon != nil {
			if _, failed := n.daemon.Hold(context.WithoutCancel(ctx), syscall.SIGTERM); failed != nil {
				err = errors.Join(err, failed, n.daemon.Signal(syscall.SIGKILL))
			}
			n.daemon.Close()
		}
		n.client.Close()
	}
	if c.network != nil {
		err = errors.Join(err, c.network.Remove(ctx))
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// worker is the process that trains on the host.
func (n *node) worker() (int, error) {
	found := rig.Processes("\x00--assignment\x00", n.dir+"/")
	if len(found) != 1 {
		return 0, fmt.Errorf("find the worker on %s: the processes %v are workers, expected one", n.on.Name, found)
	}
	return found[0], nil
}
