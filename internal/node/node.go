package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// leaderTimeout bounds the wait for Raft at the start. A lone node needs a tenth of a second.
const leaderTimeout = 30 * time.Second

// node is a running daemon.
type node struct {
	config  Config
	id      string
	log     *zap.Logger
	inspect *spec.Inspector
	raft    *raftlog.Log
	started time.Time

	agent    *agent.Local
	events   chan agent.Event // of workers and of tunings of jobs, to the coordinator
	outcomes chan outcome     // of acts, to the coordinator
	acts     sync.WaitGroup
	watchers sync.WaitGroup
	counts   counts
	beat     atomic.Int64 // when the coordinator last went round, Unix nanoseconds

	ending context.Context // ends when the daemon begins to stop
	stop   func()          // ends it

	mu       sync.Mutex
	stopping bool
	jobs     map[string]*observed
	specs    map[string]*spec.Spec
	pins     map[shard.Digest]int // shards that an export reads
	lent     []int                // cores that are tuned on for nobody's job
	looked   time.Time            // when the coordinator last looked

	sweep sync.Mutex // held while the quarantine is looked through
}

// Run runs the daemon until ctx ends, then lets every job commit and its worker end, for a bounded time, and returns. Any
// other return is a failure, after the same end in order. Workers that are still alive then go on until the next daemon or
// Limits.OrphanAfter.
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
	id, raft, err := openState(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raft.Close()) }()
	here, err := agent.Open(agent.Config{
		Node: id, StateDir: c.StateDir, Worker: c.WorkerCommand, Tuning: c.TuneCommand, Log: c.Log,
		Limits: func() agent.Limits {
			l := c.Limits()
			return agent.Limits{OrphanAfter: l.OrphanAfter, LogBytes: l.LogBytes, LogFiles: l.LogFiles}
		},
	})
	if err != nil {
		return err
	}
	defer here.Close()
	ending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	n := &node{
		ending: ending, stop: stop, config: c, id: id, log: c.Log, inspect: spec.NewInspector(c.InspectCommand), raft: raft, started: time.Now(),
		agent: here, events: make(chan agent.Event, 64), outcomes: make(chan outcome, 64),
		jobs: map[string]*observed{}, specs: map[string]*spec.Spec{}, pins: map[shard.Digest]int{},
	}
	return n.run(ctx)
}

// openState opens what the state directory holds, or begins it. The caller closes the log.
func openState(ctx context.Context, c Config) (id string, raft *raftlog.Log, err error) {
	who, kept, err := readIdentity(c.StateDir, c.NodeID)
	if err != nil {
		return "", nil, err
	}
	jobs, err := jobIDs(c.StateDir)
	if err != nil {
		return "", nil, err
	}
	raft, err = raftlog.Open(raftlog.Config{
		Dir: raftDir(c.StateDir), NodeID: who.Node, Existing: kept || len(jobs) > 0, Logger: c.Log,
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
	if err == nil {
		err = removeStale(c.StateDir, c.Log)
	}
	if err != nil {
		return "", nil, errors.Join(err, raft.Close())
	}
	return who.Node, raft, nil
}

// run serves and coordinates. The API answers until the last worker has ended, so that one can watch the end.
func (n *node) run(ctx context.Context) error {
	beside, end := context.WithCancel(context.WithoutCancel(ctx)) // what outlives ctx: acts, watchers, the API
	defer end()
	if err := n.adopt(beside); err != nil {
		return err
	}
	n.finishRemovals()
	n.keepRecords()
	listener, monitoring, err := n.listen(ctx)
	if err != nil {
		end()
		n.watchers.Wait()
		return err
	}
	group, running := errgroup.WithContext(ctx) // ends with ctx, or when one of the parts fails
	group.Go(func() error {
		return server.Serve(beside, server.Config{Listener: listener, Backend: n, Log: n.log, AdminGroup: n.config.AdminGroup})
	})
	if monitoring != nil {
		group.Go(func() error { return server.ServeMonitoring(beside, monitoring, n, n.log) })
	}
	group.Go(func() error {
		n.watchdog(beside)
		return nil
	})
	group.Go(func() error { return n.watchRaft(beside) })
	group.Go(func() error {
		n.sweepQuarantines(beside)
		return nil
	})
	group.Go(func() error {
		n.retain(beside)
		return nil
	})
	group.Go(func() error {
		defer end()
		n.coordinate(running, beside)
		return nil
	})
	n.log.Info("ready", zap.String("node", n.id), zap.String("socket", n.config.Socket), zap.String("state", n.config.StateDir),
		zap.Ints("cores", n.config.Cores), zap.String("version", n.config.Version))
	n.notify(daemon.SdNotifyReady)
	if n.config.OnReady != nil {
		n.config.OnReady()
	}
	err = group.Wait()
	n.acts.Wait()
	n.watchers.Wait()
	return err
}

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

// notify tells systemd how the daemon is, if systemd started it.
func (n *node) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		n.log.Warn("notify systemd", zap.String("state", state), zap.Error(err))
	}
}

// watchdog tells systemd that the daemon lives for as long as the coordinator goes round.
func (n *node) watchdog(ctx context.Context) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		n.log.Warn("ask for systemd's watchdog", zap.Error(err))
		return
	}
	if interval == 0 {
		return
	}
	for sleep(ctx, interval/3) {
		if age := time.Since(time.Unix(0, n.beat.Load())); age < interval/2 {
			n.notify(daemon.SdNotifyWatchdog)
		} else {
			n.log.Error("the coordinator hangs", zap.Duration("since", age))
		}
	}
}

// job returns what was observed of a job. The caller holds the lock.
func (n *node) job(id string) *observed {
	o := n.jobs[id]
	if o == nil {
		o = &observed{}
		n.jobs[id] = o
	}
	return o
}

// spec returns what was admitted as a job, decoded once. The caller holds the lock.
func (n *node) Spec(j *cluster.Job) (*spec.Spec, error) {
	if s := n.specs[j.ID]; s != nil {
		return s, nil
	}
	s, err := spec.Decode(j.ID, j.Spec, j.Report)
	if err != nil {
		return nil, err
	}
	n.specs[j.ID] = s
	return s, nil
}

// follow passes the events of a process on to the coordinator until it has ended or ctx has.
func (n *node) follow(ctx context.Context, p agent.Process) {
	n.watchers.Go(func() {
		err := n.agent.Events(ctx, p, func(e agent.Event) {
			select {
			case n.events <- e:
			case <-ctx.Done():
			}
		})
		if err != nil && ctx.Err() == nil {
			n.log.Error("a process is not watched any more", zap.Stringer("process", p), zap.Error(err))
		}
	})
}

// say writes a line to the daemon's log and to the job's.
func (n *node) say(job, message string, fields ...zap.Field) {
	n.sayAt(zap.InfoLevel, job, message, fields...)
}

// sayAt is say with a level.
func (n *node) sayAt(level zapcore.Level, job, message string, fields ...zap.Field) {
	n.log.Log(level, message, append([]zap.Field{zap.String("job", job)}, fields...)...)
	n.agent.Log(job, level, message, fields...)
}

// sleep waits and reports whether ctx still holds.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
