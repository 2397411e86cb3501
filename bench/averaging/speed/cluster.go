package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/hosts"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// The bounds of waits. Nothing waits this long unless something is broken, or the machine does far more than this.
const (
	joinBound = time.Minute
	stopBound = time.Minute
)

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
	core   int // that all of the host runs on; -1: on any
	dir    string
	client *api.Client
	daemon *rig.Supervisor // nil until it is started
}

// command is one that runs on the host, and on its core.
func (n *node) command(program string, arguments ...string) *exec.Cmd {
	if n.core < 0 {
		return n.on.Command(program, arguments...)
	}
	return n.on.Command("taskset", append([]string{"-c", strconv.Itoa(n.core), program}, arguments...)...)
}

// newCluster makes hosts and links and starts the daemons. Whoever gets an error has nothing to close. With a core for each, hosts share the cores of
// the machine evenly, whoever computes on them; else what they run takes any, as what takes dictated times does.
func newCluster(ctx context.Context, program string, replicas int, bits int64, cores bool) (c *cluster, err error) {
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
	if err := os.WriteFile(c.corpus(), rig.Text(20_000), 0o600); err != nil {
		return c, err
	}
	var names []string
	for i := range replicas {
		names = append(names, string(rune('a'+i)))
	}
	if c.network, err = hosts.New(ctx, names...); err != nil {
		return c, err
	}
	for i, on := range c.network.Hosts() {
		if err := c.network.Limit(ctx, on.Name, bits); err != nil {
			return c, err
		}
		n := &node{on: on, core: -1, dir: filepath.Join(dir, on.Name)}
		if cores {
			n.core = i % runtime.NumCPU()
		}
		n.client = api.NewClient(filepath.Join(n.dir, "sock"))
		c.nodes = append(c.nodes, n)
		config := fmt.Sprintf("state_dir: %s\nsocket: %s\nnode: %s\nlisten: %s\n", n.state(), filepath.Join(n.dir, "sock"), on.Name, on.Address+rig.Port)
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
	var members []rig.Member
	for _, n := range c.nodes {
		members = append(members, rig.Member{
			Name: n.on.Name, Address: n.on.Address, Config: n.config(), Client: n.client,
			Command: func(arguments ...string) *exec.Cmd { return n.command(c.program, arguments...) }, Start: func(ctx context.Context) { n.start(ctx, c.program) },
		})
	}
	if err := rig.Form(ctx, members); err != nil {
		return err
	}
	first := c.nodes[0]
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

// start starts the daemon.
func (n *node) start(ctx context.Context, program string) {
	n.daemon = rig.Supervise(ctx, rig.SupervisorConfig{
		Command: func() *exec.Cmd { return n.command(program, "--config", n.config()) }, Log: filepath.Join(n.dir, "daemon.log"), Bound: stopBound,
	})
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
func (n *node) worker() (int, error) { return rig.WorkerIn(n.dir) }
