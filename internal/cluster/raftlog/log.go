package raftlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"

	"go.uber.org/zap"
)

// Config configures a Log.
type Config struct {
	// Dir holds the log and its snapshots. The caller sees to it that no other process has it open.
	Dir string
	// NodeID names this node, for good.
	NodeID string
	// Transport reaches the other voters; its local address is this node's. Close closes it, and an Open that fails. nil: a node that is alone, with a
	// transport inside the process.
	Transport raft.Transport
	// Voters are the cluster's first members, used only when Dir holds no state yet. Empty: this node alone.
	Voters []raft.Server
	// Joins says that this node does not begin a cluster where Dir holds no state: it waits until one that leads adds it.
	Joins bool
	// HeartbeatTimeout is how long a follower hears nothing of the leader before it stands for election, and the same again
	// for the election. Default 1 s; 50 ms for a node that is alone, which only waits for itself.
	HeartbeatTimeout time.Duration
	// SnapshotThreshold is how many entries the log grows by between snapshots, and how many it keeps behind one for slow
	// followers. Default 1,024: an entry is a few kilobytes at most, and opening reads them all.
	SnapshotThreshold uint64
	// Existing says that Dir must hold a log: an absent or empty one is damage. Otherwise one is begun where there is none, and
	// no snapshot either.
	Existing bool
	// Version is that of this program. Every command says which program wrote it.
	Version string
	// Oldest is the newest version of commands that every member of the cluster knows (cluster.CommandVersion of its program). Apply refuses a
	// command that needs a newer one. Default: that of this program.
	Oldest func() int
	// Logger gets Raft's own log. Default: none.
	Logger *zap.Logger

	wrap func(raftStore) raftStore // for tests: a store with faults
}

// applyTimeout bounds how long Apply waits for a place in the leader's queue, in addition to its context.
const applyTimeout = 10 * time.Second

// cachedEntries is how many of the newest entries are kept in memory: the node that leads sends each to all others, and would read it from its disk for each.
const cachedEntries = 512

// Heartbeat is how long a follower of a cluster hears nothing of the leader before it stands for election.
const Heartbeat = time.Second

func (c Config) withDefaults() Config {
	heartbeat := Heartbeat
	if c.Transport == nil {
		heartbeat = 50 * time.Millisecond
	}
	c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, heartbeat)
	c.SnapshotThreshold = cmp.Or(c.SnapshotThreshold, 1024)
	c.Logger = cmp.Or(c.Logger, zap.NewNop())
	if c.Oldest == nil {
		c.Oldest = func() int { return cluster.CommandVersion }
	}
	if c.wrap == nil {
		c.wrap = func(s raftStore) raftStore { return s }
	}
	return c
}

// validate reports a setting that the log cannot work with.
func (c Config) validate() error {
	if c.Dir == "" || c.NodeID == "" {
		return fmt.Errorf("raft: directory %q, node %q: both must be given", c.Dir, c.NodeID)
	}
	if c.HeartbeatTimeout < 5*time.Millisecond {
		return fmt.Errorf("raft: heartbeat timeout %s: at least 5ms", c.HeartbeatTimeout)
	}
	if len(c.Voters) > 0 && c.Transport == nil {
		return errors.New("raft: voters without a transport to reach them")
	}
	return nil
}

// raftConfig is the library's form of the settings.
func (c Config) raftConfig() *raft.Config {
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

// ErrLost is wrapped by Apply's error on a node that led while it proposed the command, and does not any more.
var ErrLost = errors.New("leadership was lost before the command was known to be committed, and it may still be applied")

// ErrClosed is wrapped by the errors of a Log that is closed.
var ErrClosed = errors.New("the raft log is closed")

// ErrRestoring is wrapped by Apply's error while a backup takes the place of the state.
var ErrRestoring = errors.New("a backup is being restored: try again")

// ErrOldMember is wrapped by Apply's error for a command that not every member knows.
var ErrOldMember = errors.New("a member runs an older avgpiped that does not know this: update all nodes first")

// Log replicates the state: commands go in at the leader, and every node's State follows. Its methods may be called
// concurrently.
type Log struct {
	config    Config
	raft      *raft.Raft
	store     *guard
	snapshots *snapStore

	opened    time.Time
	proposing sync.RWMutex // Apply holds it for reading, Restore for writing

	mu      sync.Mutex
	state   *cluster.State
	changed chan struct{} // closed when state is replaced
	close   sync.Once
	closing chan struct{} // closed when Close begins
	stopped chan struct{} // closed when Raft's goroutines have ended
}

// Open opens the log in config.Dir, or starts one, and takes part in its cluster. A log or a snapshot that is missing,
// truncated or damaged is an error that names the file; nothing of it is loaded. The caller closes the Log.
func Open(config Config) (*Log, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	found, snapshots, err := openFiles(config)
	if err != nil {
		return nil, errors.Join(err, config.closeTransport())
	}
	l := &Log{
		config: config, snapshots: snapshots, opened: time.Now(), state: cluster.NewState(),
		changed: make(chan struct{}), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	l.store = newGuard(config.wrap(found), l.closing)
	if err := l.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("open raft log %s: %w", config.Dir, err), l.store.Close(), config.closeTransport())
	}
	return l, nil
}

// closeTransport closes the transport of a log that does not open.
func (c Config) closeTransport() error {
	if t, ok := c.Transport.(raft.WithClose); ok {
		return t.Close()
	}
	return nil
}

// start runs Raft on the open files.
func (l *Log) start() error {
	transport := l.config.Transport
	if transport == nil {
		_, transport = raft.NewInmemTransport(raft.ServerAddress(l.config.NodeID))
	}
	existing, err := raft.HasExistingState(l.store, l.store, l.snapshots)
	if err != nil {
		return err
	}
	if err := l.dropCovered(); err != nil {
		return err
	}
	rc := l.config.raftConfig()
	if !existing && !l.config.Joins {
		voters := l.config.Voters
		if len(voters) == 0 {
			voters = []raft.Server{{ID: rc.LocalID, Address: transport.LocalAddr()}}
		}
		if err := raft.BootstrapCluster(rc, l.store, l.store, l.snapshots, transport, raft.Configuration{Servers: voters}); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	if t, ok := transport.(*Transport); ok {
		defer func() { // once there is a Raft
			t.contacts.follow(l.has)
			t.pace.follow(func() raft.Configuration { return l.raft.GetConfiguration().Configuration() }, l.config.HeartbeatTimeout)
		}()
	}
	if l.raft, err = l.newRaft(rc, transport); err != nil {
		if l.raft != nil {
			err = errors.Join(err, l.stop())
		}
		return err
	}
	l.store.run()
	return l.checkMember()
}

// dropCovered empties a log that ends before the newest snapshot: a crash came after Raft had installed that, and before it had emptied the log. The
// log takes no entry after a gap.
func (l *Log) dropCovered() error {
	metas, err := l.snapshots.List()
	first, firstErr := l.store.FirstIndex()
	last, lastErr := l.store.LastIndex()
	if err := errors.Join(err, firstErr, lastErr); err != nil || len(metas) == 0 || last == 0 || last >= metas[0].Index {
		return err
	}
	return l.store.DeleteRange(first, last)
}

// newRaft is raft.NewRaft, which panics or hides the cause where its store fails.
func (l *Log) newRaft(rc *raft.Config, transport raft.Transport) (r *raft.Raft, err error) {
	defer func() {
		p := recover()
		if failure := l.store.first(); failure != nil {
			err = failure
		} else if p != nil {
			panic(p) // not the store's doing
		}
	}()
	entries, err := raft.NewLogCache(cachedEntries, l.store)
	if err != nil {
		return nil, err
	}
	return raft.NewRaft(rc, (*fsm)(l), entries, l.store, l.snapshots, transport)
}

// checkMember reports a lone node that the log does not know: it would wait for a leader for ever.
func (l *Log) checkMember() error {
	if l.config.Transport != nil {
		return nil
	}
	future := l.raft.GetConfiguration()
	if err := future.Error(); err != nil {
		return errors.Join(err, l.stop())
	}
	var names []string
	for _, s := range future.Configuration().Servers {
		names = append(names, string(s.ID))
	}
	if slices.Contains(names, l.config.NodeID) {
		return nil
	}
	return errors.Join(fmt.Errorf("it is the log of node %s, and this node is %s: give the node its name back, or restore the right log",
		strings.Join(names, ", "), l.config.NodeID), l.stop())
}

// State is the replicated state as far as this node has it. It never changes; ask again for a newer one.
func (l *Log) State() *cluster.State {
	s, _ := l.Changed()
	return s
}

// Changed returns that state, and a channel that is closed when there is a newer one.
func (l *Log) Changed() (*cluster.State, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, l.changed
}

// replace makes s the state.
func (l *Log) replace(s *cluster.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	close(l.changed)
	l.changed = make(chan struct{})
}

// Leader is the ID of the node that leads, as far as this one knows; empty when it knows of none.
func (l *Log) Leader() string {
	_, id := l.raft.LeaderWithID()
	return string(id)
}

// IsLeader reports whether this node leads, as far as it knows. Apply finds out for sure.
func (l *Log) IsLeader() bool { return l.raft.State() == raft.Leader }

// Applied is the index of the last entry that is in State.
func (l *Log) Applied() uint64 { return l.raft.AppliedIndex() }

// maxLag is how many committed entries may wait to be applied on a node that is ready.
const maxLag = 1000

// Ready reports what keeps this node from deciding: no leader, entries that are not applied, or files that fail.
func (l *Log) Ready() error {
	if err := l.Err(); err != nil {
		return err
	}
	if l.Leader() == "" {
		return errors.New("there is no leader")
	}
	if err := l.snapshots.failed.get(); err != nil {
		return fmt.Errorf("no snapshot can be written, and the log grows: %w", err)
	}
	if committed, applied := l.raft.CommitIndex(), l.Applied(); committed > applied+maxLag {
		return fmt.Errorf("entry %d is committed and only %d is applied", committed, applied)
	}
	return nil
}

// Failed is closed when Raft's files could not be written or read; Err says why. Nothing is decided from then on: close the Log,
// and open it anew once its disk works again.
func (l *Log) Failed() <-chan struct{} { return l.store.failed }

// Err is why the log failed; nil while it has not.
func (l *Log) Err() error { return l.store.first() }

// WaitReady waits until there is a leader and, when that is this node, until everything committed before is in State.
func (l *Log) WaitReady(ctx context.Context) error {
	for l.Leader() == "" {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-l.Failed():
			return fmt.Errorf("raft: wait for a leader: %w", l.Err())
		case <-ctx.Done():
			return fmt.Errorf("raft: wait for a leader: %w", ctx.Err())
		}
	}
	if !l.IsLeader() {
		return nil
	}
	return l.wait(ctx, "barrier", func() error { return l.raft.Barrier(applyTimeout).Error() })
}

// Apply proposes a command and waits until it is applied here. The error is the command's own (test with errors.Is against
// ErrStaleGeneration and the like), or wraps ErrNotLeader, ErrLost, ErrOldMember, ErrRestoring, ErrClosed or the context's. When the context ends first, the
// command may still be applied later.
func (l *Log) Apply(ctx context.Context, c cluster.Command) (cluster.Result, error) {
	if needs, oldest := cluster.NeededVersion(c), l.config.Oldest(); needs > oldest {
		return cluster.Result{}, fmt.Errorf("raft: %s: it needs version %d of commands, and a member knows %d: %w", cluster.Kind(c), needs, oldest, ErrOldMember)
	}
	data, err := cluster.EncodeCommand(c, l.config.Version)
	if err == nil && len(data) > cluster.MaxCommandBytes {
		err = fmt.Errorf("raft: %s: too large for the record of jobs: %d bytes, at most %d", cluster.Kind(c), len(data), cluster.MaxCommandBytes)
	}
	if err != nil {
		return cluster.Result{}, err
	}
	applied := make(chan outcome, 1)
	err = l.wait(ctx, cluster.Kind(c), func() error {
		if !l.proposing.TryRLock() {
			return ErrRestoring
		}
		defer l.proposing.RUnlock()
		future := l.raft.Apply(data, applyTimeout)
		if err := future.Error(); err != nil {
			return err
		}
		applied <- future.Response().(outcome) //nolint:forcetypeassert,errcheck // of fsm.Apply
		return nil
	})
	if err != nil {
		return cluster.Result{}, err
	}
	out := <-applied
	return out.result, out.err
}

// wait runs f and waits for it, for the end of the log or for the context. Raft may leave a future without an answer when it stops; f
// stays where it is then.
func (l *Log) wait(ctx context.Context, what string, f func() error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("raft: %s: %w", what, ctx.Err())
	}
	select {
	case <-l.closing:
		return fmt.Errorf("raft: %s: %w", what, ErrClosed)
	default:
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return l.explain(what, err)
	case <-l.stopped:
		return fmt.Errorf("raft: %s: no answer, it may still be applied: %w", what, ErrClosed)
	case <-l.Failed():
		return fmt.Errorf("raft: %s: no answer, it may still be applied: %w", what, l.Err())
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
		return fmt.Errorf("raft: %s: %w", what, ErrLost)
	case errors.Is(err, raft.ErrRaftShutdown):
		return fmt.Errorf("raft: %s: %w", what, ErrClosed)
	case l.Err() != nil: // the library has it as text
		return fmt.Errorf("raft: %s: %w", what, l.Err())
	default:
		return fmt.Errorf("raft: %s: %w", what, err)
	}
}

// Close stops taking part, waits for Raft's goroutines and closes the files. A second Close does nothing.
func (l *Log) Close() (err error) {
	l.close.Do(func() {
		err = l.stop()
		close(l.stopped)
		err = errors.Join(err, l.store.Close())
	})
	return err
}

// stop ends Raft's goroutines.
func (l *Log) stop() error {
	close(l.closing)
	if err := l.raft.Shutdown().Error(); err != nil {
		return fmt.Errorf("stop raft: %w", err)
	}
	return nil
}
