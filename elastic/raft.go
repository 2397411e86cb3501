package elastic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// RaftConfig configures a Log.
type RaftConfig struct {
	// Dir holds the log and its snapshots. One process at a time.
	Dir string
	// NodeID names this node, for good.
	NodeID string
	// Transport reaches the other voters; its local address is this node's. Close closes it. nil: a node that is alone, with a
	// transport inside the process.
	Transport raft.Transport
	// Voters are the cluster's first members, used only when Dir holds no state yet. Empty: this node alone.
	Voters []raft.Server
	// HeartbeatTimeout is how long a follower hears nothing of the leader before it stands for election, and the same again
	// for the election. Default 1 s; 50 ms for a node that is alone, which only waits for itself.
	HeartbeatTimeout time.Duration
	// ApplyTimeout bounds how long Apply waits for a place in the leader's queue, beside its context. Default 10 s.
	ApplyTimeout time.Duration
	// SnapshotThreshold is how many entries the log grows by between snapshots, and how many it keeps behind one for slow
	// followers. Default 1,024: an entry is a few kilobytes at most, and opening reads them all.
	SnapshotThreshold uint64
	// Logger gets Raft's own log. Default: none.
	Logger *zap.Logger
}

func (c RaftConfig) withDefaults() RaftConfig {
	if c.HeartbeatTimeout == 0 {
		c.HeartbeatTimeout = time.Second
		if c.Transport == nil {
			c.HeartbeatTimeout = 50 * time.Millisecond
		}
	}
	if c.ApplyTimeout == 0 {
		c.ApplyTimeout = 10 * time.Second
	}
	if c.SnapshotThreshold == 0 {
		c.SnapshotThreshold = 1024
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// Validate reports a setting that the log cannot work with.
func (c RaftConfig) Validate() error {
	c = c.withDefaults()
	if c.Dir == "" || c.NodeID == "" {
		return fmt.Errorf("raft: directory %q, node %q: both must be given", c.Dir, c.NodeID)
	}
	if c.HeartbeatTimeout < 5*time.Millisecond || c.ApplyTimeout < 0 {
		return fmt.Errorf("raft: heartbeat timeout %s, apply timeout %s: at least 5ms and 0", c.HeartbeatTimeout, c.ApplyTimeout)
	}
	if len(c.Voters) > 0 && c.Transport == nil {
		return errors.New("raft: voters without a transport to reach them")
	}
	return nil
}

// raftConfig is the library's form of the settings.
func (c RaftConfig) raftConfig() *raft.Config {
	r := raft.DefaultConfig()
	r.LocalID = raft.ServerID(c.NodeID)
	r.HeartbeatTimeout, r.ElectionTimeout = c.HeartbeatTimeout, c.HeartbeatTimeout
	r.LeaderLeaseTimeout = c.HeartbeatTimeout / 2
	r.CommitTimeout = min(r.CommitTimeout, c.HeartbeatTimeout/5)
	r.SnapshotThreshold, r.TrailingLogs = c.SnapshotThreshold, c.SnapshotThreshold
	r.NoLegacyTelemetry = true
	r.Logger = raftLogger(c.Logger)
	return r
}

// ErrNotLeader is wrapped by Apply's error on a node that does not lead.
var ErrNotLeader = errors.New("this node is not the leader")

// ErrClosed is wrapped by the errors of a Log that is closed.
var ErrClosed = errors.New("the raft log is closed")

// Log replicates the state: commands go in at the leader, and every node's State follows. Its methods may be called
// concurrently.
type Log struct {
	config RaftConfig
	fsm    *FSM
	raft   *raft.Raft
	store  *checkedLog

	mu      sync.Mutex
	closed  bool
	waiters sync.WaitGroup // goroutines that wait for a future whose caller may have gone
}

// OpenRaft opens the log in config.Dir, or starts one, and takes part in its cluster. A log or a snapshot that is truncated or damaged
// is an error that names the file; nothing of it is loaded. The caller closes the Log.
func OpenRaft(config RaftConfig) (*Log, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open raft log: %w", err)
	}
	store, err := openLog(filepath.Join(config.Dir, "raft.db"))
	if err != nil {
		return nil, err
	}
	l := &Log{config: config, fsm: NewFSM(), store: store}
	if err := l.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("open raft log %s: %w", config.Dir, err), store.Close())
	}
	return l, nil
}

// start runs Raft on the open store.
func (l *Log) start() error {
	snapshots, err := openSnapStore(checkpoint.OS, filepath.Join(l.config.Dir, "snapshots"))
	if err != nil {
		return err
	}
	if err := checkJoint(l.store, snapshots); err != nil {
		return err
	}
	transport := l.config.Transport
	if transport == nil {
		_, transport = raft.NewInmemTransport(raft.ServerAddress(l.config.NodeID))
	}
	existing, err := raft.HasExistingState(l.store, l.store, snapshots)
	if err != nil {
		return err
	}
	rc := l.config.raftConfig()
	if !existing {
		voters := l.config.Voters
		if len(voters) == 0 {
			voters = []raft.Server{{ID: rc.LocalID, Address: transport.LocalAddr()}}
		}
		if err := raft.BootstrapCluster(rc, l.store, l.store, snapshots, transport, raft.Configuration{Servers: voters}); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	l.raft, err = raft.NewRaft(rc, l.fsm, l.store, l.store, snapshots, transport)
	return err
}

// checkJoint reports entries missing between the newest snapshot and the log, as when one of the two was deleted.
func checkJoint(log *checkedLog, snapshots *snapStore) error {
	metas, err := snapshots.List()
	if err != nil {
		return err
	}
	covered := uint64(0)
	if len(metas) > 0 {
		covered = metas[0].Index
	}
	first, err := log.FirstIndex()
	if err != nil {
		return err
	}
	if first > covered+1 {
		return fmt.Errorf("entries %d to %d are missing: the log %s starts at %d and the newest snapshot in %s ends at %d; "+
			"restore both from one backup", covered+1, first-1, log.path, first, snapshots.dir, covered)
	}
	return nil
}

// State is the replicated state as far as this node has it.
func (l *Log) State() *State { return l.fsm.State() }

// Changed returns that state, and a channel that is closed when there is a newer one.
func (l *Log) Changed() (*State, <-chan struct{}) { return l.fsm.Changed() }

// Leader is the ID of the node that leads, as far as this one knows; empty when it knows of none.
func (l *Log) Leader() string {
	_, id := l.raft.LeaderWithID()
	return string(id)
}

// IsLeader reports whether this node leads, as far as it knows. Apply finds out for sure.
func (l *Log) IsLeader() bool { return l.raft.State() == raft.Leader }

// Leadership delivers true when this node begins to lead and false when it no longer does; the latest replaces one that nobody
// has received. For one receiver.
func (l *Log) Leadership() <-chan bool { return l.raft.LeaderCh() }

// WaitReady waits until there is a leader and, when that is this node, until everything committed before is in State.
func (l *Log) WaitReady(ctx context.Context) error {
	changes := make(chan raft.Observation, 1)
	observer := raft.NewObserver(changes, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	l.raft.RegisterObserver(observer)
	defer l.raft.DeregisterObserver(observer)
	for l.Leader() == "" {
		select {
		case <-changes:
		case <-ctx.Done():
			return fmt.Errorf("raft: wait for a leader: %w", ctx.Err())
		}
	}
	if !l.IsLeader() {
		return nil
	}
	return l.wait(ctx, "barrier", func() error { return l.raft.Barrier(l.config.ApplyTimeout).Error() })
}

// Apply proposes a command and waits until it is applied here. The error is the command's own (test with errors.Is against
// ErrStaleGeneration and the like), or wraps ErrNotLeader, ErrClosed or the context's. When the context ends first, the
// command may still be applied later.
func (l *Log) Apply(ctx context.Context, c Command) (Result, error) {
	data, err := EncodeCommand(c)
	if err != nil {
		return Result{}, err
	}
	var out outcome
	applied := make(chan outcome, 1)
	err = l.wait(ctx, c.Kind(), func() error {
		future := l.raft.Apply(data, l.config.ApplyTimeout)
		if err := future.Error(); err != nil {
			return err
		}
		o, ok := future.Response().(outcome)
		if !ok {
			return fmt.Errorf("unexpected response %T", future.Response())
		}
		applied <- o
		return nil
	})
	if err != nil {
		return Result{}, err
	}
	out = <-applied
	return out.result, out.err
}

// wait runs f, which ends at the latest when the log is closed, and waits for it or for the context.
func (l *Log) wait(ctx context.Context, what string, f func() error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("raft: %s: %w", what, ctx.Err())
	}
	done := make(chan error, 1)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fmt.Errorf("raft: %s: %w", what, ErrClosed)
	}
	l.waiters.Go(func() { done <- f() })
	l.mu.Unlock()
	select {
	case err := <-done:
		return l.explain(what, err)
	case <-ctx.Done():
		return fmt.Errorf("raft: %s: no answer yet, it may still be applied: %w", what, ctx.Err())
	}
}

// explain gives the library's errors this package's names.
func (l *Log) explain(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader):
		leader := l.Leader()
		if leader == "" {
			leader = "nobody yet"
		}
		return fmt.Errorf("raft: %s: %w; the leader is %s", what, ErrNotLeader, leader)
	case errors.Is(err, raft.ErrLeadershipLost):
		return fmt.Errorf("raft: %s: leadership was lost before it was known to be committed, it may still be applied: %w", what, err)
	case errors.Is(err, raft.ErrRaftShutdown):
		return fmt.Errorf("raft: %s: %w", what, ErrClosed)
	default:
		return fmt.Errorf("raft: %s: %w", what, err)
	}
}

// Snapshot makes Raft write a snapshot now, as it does by itself every SnapshotThreshold entries.
func (l *Log) Snapshot(ctx context.Context) error {
	return l.wait(ctx, "snapshot", func() error {
		err := l.raft.Snapshot().Error()
		if errors.Is(err, raft.ErrNothingNewToSnapshot) {
			return nil
		}
		return err
	})
}

// Close stops taking part, waits for all goroutines and closes the files. A second Close does nothing.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	err := l.raft.Shutdown().Error()
	l.waiters.Wait()
	if err != nil {
		err = fmt.Errorf("stop raft: %w", err)
	}
	return errors.Join(err, l.store.Close())
}
