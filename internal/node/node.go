package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// leaderTimeout bounds the wait for Raft at the start. A lone node needs a tenth of a second.
const leaderTimeout = 30 * time.Second

// node is a running daemon.
type node struct {
	config      Config
	id          string
	log         *zap.Logger
	inspect     *admission.Inspector
	raft        *raftlog.Log
	agent       *agent.Local
	coordinator *coordinator.Coordinator
	started     time.Time
	kept        sync.Map // the last statuses of ended jobs that lie on the disk, *control.Status by keptStatus
	exports     *exporter
	archives    *archiver
	readers     readers
	gpus        *gpu.Monitor
	audit       *audit.Log
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
	id, raft, err := openState(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raft.Close()) }()
	here, err := agent.Open(agent.Config{
		Node: id, StateDir: c.StateDir, Worker: c.WorkerCommand, Tuning: c.TuneCommand, Graphics: c.Graphics, Log: c.Log,
		Limits: func() agent.Limits { return c.Limits().Agent },
	})
	if err != nil {
		return err
	}
	defer here.Close()
	here.Tidy(ctx, raft.State())
	n := &node{config: c, id: id, log: c.Log, inspect: admission.NewInspector(c.InspectCommand), raft: raft, agent: here, started: time.Now(), gpus: gpus, audit: book}
	n.archives = newArchiver(n, c.Buckets)
	n.exports = &exporter{node: n, records: map[string]exportRecord{}}
	alone := []coordinator.Node{{Name: id, Cores: c.Cores, MemoryBytes: spec.HostMemory(), GPUs: gpus.GPUs, Excludes: gpus.Excludes, Agent: here}}
	n.coordinator = coordinator.New(coordinator.Config{
		Nodes: func() []coordinator.Node { return alone }, Raft: raft, KeepReport: n.keepObject, DriftHold: c.DriftHold, Log: c.Log, OnStop: n.notifyStop,
		Limits: func() coordinator.Limits { return c.Limits().Jobs }, Spare: n.exports.due,
	})
	defer n.coordinator.Close()
	return n.run(ctx)
}

// openState opens what the state directory holds, or begins it. The caller closes the log.
func openState(ctx context.Context, c Config) (id string, raft *raftlog.Log, err error) {
	who, kept, err := readIdentity(c.StateDir, c.NodeID)
	if err != nil {
		return "", nil, err
	}
	jobs, err := agent.JobIDs(c.StateDir)
	if err != nil {
		return "", nil, err
	}
	raft, err = raftlog.Open(raftlog.Config{
		Dir: raftDir(c.StateDir), NodeID: who.Node, Existing: kept || len(jobs) > 0, Version: c.Version, Logger: c.Log,
	})
	if err != nil {
		return "", nil, err
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
	return who.Node, raft, nil
}

// run serves and coordinates. The API answers until the last worker has ended, so that one can watch the end.
func (n *node) run(ctx context.Context) error {
	background, end := context.WithCancel(context.WithoutCancel(ctx)) // of what outlives ctx
	defer end()
	if err := n.coordinator.Adopt(ctx); err != nil {
		return err
	}
	listener, monitoring, err := n.listen(ctx)
	if err != nil {
		return err
	}
	group, running := errgroup.WithContext(ctx) // ends with ctx, or when one of the parts fails
	group.Go(func() error {
		return server.Serve(background, server.Config{Listener: listener, Backend: n, Log: n.log, AdminGroup: n.config.AdminGroup, Audit: n.audit.Write})
	})
	if monitoring != nil {
		group.Go(func() error { return server.ServeMonitoring(background, monitoring, n, n.log) })
	}
	group.Go(func() error { return n.watchRaft(background) })
	for _, part := range []func(context.Context){n.watchdog, n.coordinator.RetainJobs, n.gpus.Run} {
		group.Go(func() error {
			part(background)
			return nil
		})
	}
	for _, part := range []func(context.Context){n.exports.run, n.archives.run} {
		group.Go(func() error {
			part(running)
			return nil
		})
	}
	group.Go(func() error {
		defer end()
		n.coordinator.Run(running)
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

// stopping reports whether the daemon has begun to stop.
func (n *node) stopping() bool { return n.coordinator.Stopping().Err() != nil }

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
