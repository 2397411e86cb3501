package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/internal/admission"
	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/audit"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/remotedata"
	"github.com/avgpipe/avgpipe/internal/server"
)

// leaderTimeout bounds the wait for Raft at the start. A lone node needs a tenth of a second.
const leaderTimeout = 30 * time.Second

// node is a running daemon.
type node struct {
	config   Config
	id       string
	log      *zap.Logger
	inspect  *admission.Inspector
	raft     *raftlog.Log
	agent    *agent.Local
	member   *member // nil: this node is alone
	seen     seen
	leads    atomic.Bool   // this node leads, and its coordinator has begun
	ledTerm  atomic.Uint64 // in which it does
	leading  atomic.Pointer[coordinator.Coordinator]
	started  time.Time
	since    atomic.Pointer[time.Time] // when the coordinator of this node began
	speed    atomic.Uint64             // GFLOP/s of a core, as math.Float64bits; 0: not known
	kept     sync.Map                  // the last statuses of ended jobs that lie on disks, foundStatus by keptStatus
	exports  *exporter
	archives *archiver
	readers  readers
	host     memory
	gpus     *gpu.Monitor
	copies   *remotedata.Cache
	audit    *audit.Log
}

// Run runs the daemon until ctx ends, then lets every job commit and its worker end, for a bounded time, and returns. Any
// other return is a failure, after the same end in order. Workers that are still alive then go on until the next daemon or
// Limits.Agent.OrphanAfter.
func Run(ctx context.Context, c Config) (err error) {
	c, err = c.withDefaults()
	if err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	lock, err := lockState(c.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	gpus, err := startGPUs(ctx, c)
	if err != nil {
		return err
	}
	book, err := audit.Open(audit.Config{Path: auditPath(c.StateDir), Log: c.Log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	m, err := openMember(ctx, c, book)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	id, raft, err := openState(ctx, c, m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raft.Close()) }()
	n := &node{config: c, id: id, log: c.Log, inspect: admission.NewInspector(c.InspectCommand), raft: raft, started: time.Now(), gpus: gpus, audit: book, member: m}
	defer n.openFetched()()
	here, err := agent.Open(agent.Config{
		Node: id, StateDir: c.StateDir, Worker: c.WorkerCommand, Tuning: c.TuneCommand, Graphics: c.Graphics, Log: c.Log,
		Limits: func() agent.Limits { return c.Limits().Agent }, Info: n.info, Peers: n.peer, Look: n.inspect.Look, Fetch: n.fetch, Links: m.links(c.UCXDevices), Refused: m.linkRefused, Processes: c.Processes,
	})
	if err != nil {
		return err
	}
	defer here.Close()
	n.agent = here
	here.Tidy(ctx, raft.State())
	n.archives = newArchiver(n, c.Buckets)
	n.exports = &exporter{node: n, records: map[string]exportRecord{}}
	n.rest()
	defer func() { n.coordinator().Close() }()
	return n.run(ctx)
}

// openState opens what the state directory holds, or begins it. The caller closes the log.
func openState(ctx context.Context, c Config, m *member) (id string, raft *raftlog.Log, err error) {
	wanted := c.NodeID
	if m != nil {
		wanted = m.identity.Name()
	}
	who, kept, err := readIdentity(c.StateDir, wanted)
	if err != nil {
		return "", nil, err
	}
	jobs, err := agent.JobIDs(c.StateDir)
	if err != nil {
		return "", nil, err
	}
	config := raftlog.Config{Dir: raftDir(c.StateDir), NodeID: who.Node, Existing: kept || len(jobs) > 0, Version: c.Version, Logger: c.Log}
	if m != nil {
		m.configure(&config, c.Log)
	}
	raft, err = raftlog.Open(config)
	if err != nil {
		return "", nil, damaged(err, c.StateDir, who.Node)
	}
	if m != nil && (kept || !m.begun()) { // it serves while it waits for the others
		m.follow(raft)
		return who.Node, raft, nil
	}
	waiting, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	err = raft.WaitReady(waiting)
	if err == nil && !kept {
		err = keepIdentity(c.StateDir, who)
	}
	if err != nil {
		return "", nil, errors.Join(err, raft.Close())
	}
	if m != nil {
		m.follow(raft)
	}
	return who.Node, raft, nil
}

// run serves and coordinates. The API answers until the last worker has ended, so that one can watch the end.
func (n *node) run(ctx context.Context) error {
	background, end := context.WithCancel(context.WithoutCancel(ctx)) // of what outlives ctx
	defer end()
	if n.member == nil {
		if err := n.beginTerm(ctx); err != nil {
			return err
		}
	}
	listener, monitoring, err := n.listen(ctx)
	if err != nil {
		return err
	}
	group, running := errgroup.WithContext(ctx) // ends with ctx, or when one of the parts fails
	group.Go(func() error { return server.Serve(background, n.serverConfig(listener)) })
	if monitoring != nil {
		group.Go(func() error { return server.ServeMonitoring(background, monitoring, n, n.log) })
	}
	group.Go(func() error { return n.watchRaft(background) })
	for _, part := range []func(context.Context){n.watchdog, n.gpus.Run, n.measureSpeed} {
		group.Go(func() error {
			part(background)
			return nil
		})
	}
	n.serveMembers(background, group)
	group.Go(func() error {
		defer end()
		if n.member != nil {
			n.terms(running)
		} else {
			n.coordinate(running, background)
		}
		return nil
	})
	n.log.Info("ready", zap.String("node", n.id), zap.String("socket", n.config.Socket), zap.String("state", n.config.StateDir),
		zap.Ints("cores", n.config.Cores), zap.String("version", n.config.Version))
	n.notify(daemon.SdNotifyReady)
	if n.config.OnReady != nil {
		n.config.OnReady()
	}
	return group.Wait()
}

// serverConfig is that of the API on a listener.
func (n *node) serverConfig(l net.Listener) server.Config {
	c := server.Config{Listener: l, Backend: n, Log: n.log, AdminGroup: n.config.AdminGroup, Audit: n.audit.Write}
	if n.member != nil {
		c.Cluster = n
	}
	return c
}

// stopping reports whether the daemon has begun to stop.
func (n *node) stopping() bool { return n.coordinator().Stopping().Err() != nil }

// watchRaft waits until Raft's files fail, or ctx ends. Without them nothing can be decided: the coordinator ends, the workers
// train on, and the next daemon adopts them.
func (n *node) watchRaft(ctx context.Context) error {
	select {
	case <-n.raft.Failed():
	case <-ctx.Done():
	}
	err := n.raft.Err()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("the record of jobs cannot be kept: %w; start the daemon again once its disk works: workers train on until then", err)
	n.log.Error("stopping", zap.Error(err))
	return err
}
