package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/ages"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Config configures a Local.
type Config struct {
	Node     string   // its name
	StateDir string   // each job has a directory below it
	Worker   []string // the command that starts a worker; --assignment FILE is appended
	Tuning   []string // the command that starts a tuning; --request FILE is appended
	// Graphics is asked before a process that uses GPUs starts, for flags of its command. An error that is an obstacle (obstacle.Of) may pass. Nil: there are none.
	Graphics func(ctx context.Context) ([]string, error)
	Limits   func() Limits
	Log      *zap.Logger // the daemon's
	// Info says what the host has; Node and, where it is empty, Boot are filled in. Nil: nothing is known.
	Info func() Info
	// Look implements Agent.Look. Nil: everything is taken to be here.
	Look func(ctx context.Context, s *spec.Spec) (Sight, error)
	// Fetch sees to it that what a job reads from elsewhere comes to this host, and says how far that is, without waiting. Nil: nothing comes.
	Fetch func(s *spec.Spec) Sight
	// Refused is told of connections to the ports of workers that they refused: to which job's, from where, and why. Nil: nobody is.
	Refused func(job, from, reason string)
	// Links says where workers accept links from other nodes. Zero: the host is alone.
	Links Links
	// Peers returns the agent of another node, for Fetch and Probe. Nil: the host is alone.
	Peers func(node string) (Agent, error)
	// Stall is how long a node may send nothing of a shard that is fetched from it. Default 10 s.
	Stall time.Duration
	// Processes is nil but in tests: those of the operating system.
	Processes Processes
}

// Limits may change while the agent runs.
type Limits struct {
	// OrphanAfter is how long a worker that starts from now on goes on without a daemon. Default of the daemon 1 h: long enough for an
	// upgrade that goes wrong, short enough that a machine given up is idle the same day.
	OrphanAfter time.Duration
	// LogBytes is how long a job's log may grow before it is rotated, and LogFiles how many rotated ones are kept. Default 16 MiB, and 3:
	// a log line has some hundred bytes, so that is weeks of a quiet job and the last hours of one that is not.
	LogBytes int64
	LogFiles int
	// QuarantineFor is how long shards are kept that no committed round names. Default 24 h: a person has a day to see what is wrong.
	QuarantineFor time.Duration
}

// Local runs the processes of jobs on this host.
type Local struct {
	config Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	lines  chan func() error // that write a line to a job's log

	quarantined ages.Ledger // directories of the quarantine, by path

	mu       sync.Mutex
	children map[Process]*child
	probes   map[obstacle.Obstacle]chan error // of probes that have not ended
	links    map[string]*openLink             // by job: that no worker has taken yet
	fetches  map[string]*fetch                // by job and digest
}

var _ Agent = (*Local)(nil)

// Open returns the agent of a state directory. It ends the tunings of no job that an earlier daemon left, and removes what they
// leave. The caller closes it.
func Open(c Config) (*Local, error) {
	if err := c.Links.Validate(); err != nil {
		return nil, err
	}
	if c.Processes == nil {
		if err := process.CheckWait(); err != nil {
			return nil, err
		}
		c.Processes = osProcesses{process.Host{WorkDir: workDir}}
	}
	jobs := filepath.Join(c.StateDir, "jobs")
	if err := os.MkdirAll(jobs, 0o750); err != nil {
		return nil, fmt.Errorf("make the directory of jobs: %w", err)
	}
	root := filepath.Join(c.StateDir, "tunings")
	left, err := c.Processes.Find(root)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Concat(slices.Collect(maps.Values(left))...) {
		if err := c.Processes.Kill(id); err != nil {
			return nil, err
		}
	}
	if err := os.RemoveAll(root); err != nil {
		return nil, fmt.Errorf("remove what tunings left: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Local{
		config: c, ctx: ctx, cancel: cancel, lines: make(chan func() error, 256), children: map[Process]*child{}, probes: map[obstacle.Obstacle]chan error{},
		links: map[string]*openLink{}, fetches: map[string]*fetch{},
	}
	l.tasks.Go(l.writeLogs)
	l.tasks.Go(l.sweepQuarantines)
	return l, nil
}

// Close ends the tunings and writes what is left for logs. Workers go on.
func (l *Local) Close() {
	l.mu.Lock()
	for p, c := range l.children {
		if c.started.Messages != nil {
			_ = l.config.Processes.Kill(p.ID) // it ends with this process at the latest
		}
	}
	l.cancel()
	for job, o := range l.links {
		delete(l.links, job)
		o.close()
	}
	l.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		l.tasks.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(closeTimeout):
		l.config.Log.Error("ending while a disk hangs: lines for the logs of jobs are lost")
	}
}

// closeTimeout bounds Close: a system call on a mount that hangs cannot be ended.
const closeTimeout = 5 * time.Second

// JobDir is the directory of a job below a state directory.
func JobDir(state, job string) string { return filepath.Join(state, "jobs", job) }

func (l *Local) dir(job string) string { return JobDir(l.config.StateDir, job) }

// DataDir is where copies lie of what jobs read from elsewhere, below a state directory.
func DataDir(state string) string { return filepath.Join(state, "data") }

// PlansDir is where chosen plans are cached below a state directory.
func PlansDir(state string) string { return filepath.Join(state, "plans") }

// How the command line of a worker names its assignment, and that of a tuning its request. They also tell ours from other processes.
const (
	assignmentFlag = "--assignment"
	requestFlag    = "--request"
)

// workDir returns the directory of the assignment or the request that a command line names; "" without one.
func workDir(args []string) string {
	for i := range args[:len(args)-1] {
		dir := filepath.Dir(args[i+1])
		if args[i] == assignmentFlag && control.AssignmentPath(dir) == args[i+1] || args[i] == requestFlag && control.TuneRequestPath(dir) == args[i+1] {
			return dir
		}
	}
	return ""
}

// Processes implements Agent. A worker is told by its answer.
func (l *Local) Processes(ctx context.Context) ([]Running, error) {
	found, err := l.config.Processes.Find(filepath.Join(l.config.StateDir, "jobs"))
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var all []Running
	var asked sync.WaitGroup // at once: one that hangs takes no time from the others
	for dir, ids := range found {
		asked.Go(func() {
			c := control.NewClient(dir, l.config.Processes.Dial)
			s, err := c.Status(ctx)
			c.Close()
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				r := Running{Process: Process{Job: filepath.Base(dir), Node: l.config.Node, ID: id}}
				if err == nil && s.PID == id.PID && s.JobID == r.Process.Job {
					r.Process.Generation, r.Status = s.Generation, &s
				}
				all = append(all, r)
			}
		})
	}
	asked.Wait()
	return all, nil
}

// Start implements Agent.
func (l *Local) Start(ctx context.Context, a control.Assignment) (Process, error) {
	dir, limits := l.dir(a.JobID), l.config.Limits()
	a.Version, a.Node, a.Dir, a.Data = control.Version, l.config.Node, dir, DataDir(l.config.StateDir)
	a.LogBytes, a.LogFiles, a.OrphanAfter = limits.LogBytes, limits.LogFiles, limits.OrphanAfter
	a.LogLevel = zapcore.LevelOf(l.config.Log.Core()).String()
	c := &child{process: Process{Job: a.JobID, Node: a.Node, Generation: a.Generation}, dir: dir, processes: l.config.Processes, refused: l.config.Refused}
	err := l.endOthers(a.JobID)
	if err == nil {
		err = os.Remove(control.SocketPath(dir)) // of the last one
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = rotateLog(dir, limits.LogBytes, limits.LogFiles)
	}
	if err == nil {
		onGPU := !a.Spec.Job.ModulesOnGPUs() && slices.ContainsFunc(a.Stages, func(s control.StagePlace) bool { return s.Node == a.Node && s.GPU != "" })
		inherit, taken := l.giveLink(&a)
		defer taken()
		c.inherit = inherit
		err = l.start(ctx, c, l.config.Worker, onGPU, assignmentFlag, control.AssignmentPath(dir), a)
	}
	if err != nil {
		return Process{}, fmt.Errorf("start worker of job %s: %w", a.JobID, err)
	}
	l.watch(c)
	return c.process, nil
}

// start starts a process by a command, to which flags of GPUs are added where it uses some itself: interpreters have libraries of their own.
func (l *Local) start(ctx context.Context, c *child, command []string, onGPU bool, flag, path string, todo any) error {
	if onGPU && l.config.Graphics != nil {
		more, err := l.config.Graphics(ctx)
		if err != nil {
			return err
		}
		command = slices.Concat(command, more)
	}
	return c.start(command, flag, path, todo)
}

// endOthers kills what works in a job's directory, except tunings of this agent, which are watched.
func (l *Local) endOthers(job string) error {
	found, err := l.config.Processes.Find(filepath.Join(l.config.StateDir, "jobs"))
	if err != nil {
		return err
	}
	for _, id := range found[l.dir(job)] {
		l.Log(job, zap.InfoLevel, "killing a process that works in the job's directory", zap.Int("process", id.PID))
		if err := l.config.Processes.Kill(id); err != nil {
			return err
		}
	}
	return nil
}

// Tune implements Agent.
func (l *Local) Tune(ctx context.Context, r control.TuneRequest) (Process, error) {
	c := &child{process: Process{Job: r.JobID, Node: l.config.Node}, dir: l.dir(r.JobID), processes: l.config.Processes}
	err := l.prepareTuning(c, &r)
	if err == nil && !r.Estimate && r.JobID == "" { // of a job it is here
		err = l.fetched(ctx, &r.Spec)
	}
	if err == nil {
		err = l.start(ctx, c, l.config.Tuning, len(r.GPUs) > 0 && !r.Spec.Job.ModulesOnGPUs(), requestFlag, control.TuneRequestPath(c.dir), r)
	}
	if err != nil {
		return Process{}, errors.Join(fmt.Errorf("start tuning: %w", err), c.clear())
	}
	l.watch(c)
	return c.process, nil
}

// prepareTuning makes the directories of a tuning.
func (l *Local) prepareTuning(c *child, r *control.TuneRequest) (err error) {
	if r.JobID == "" {
		root := filepath.Join(l.config.StateDir, "tunings")
		if err := os.MkdirAll(root, 0o750); err != nil {
			return err
		}
		if c.dir, err = os.MkdirTemp(root, ""); err != nil {
			return err
		}
		c.temporary = c.dir
	}
	c.scratch = filepath.Join(c.dir, "tune")
	r.Version, r.Node, r.Dir, r.Cache, r.Data = control.Version, l.config.Node, c.scratch, PlansDir(l.config.StateDir), DataDir(l.config.StateDir)
	return os.MkdirAll(r.Dir, 0o750)
}

// watch waits for a process beside its events, so that nothing that has ended stays a zombie.
func (l *Local) watch(c *child) {
	c.client, c.ended = control.NewClient(c.dir, l.config.Processes.Dial), make(chan struct{})
	l.mu.Lock()
	l.children[c.process] = c
	l.mu.Unlock()
	l.tasks.Go(func() {
		if err := c.wait(l.ctx); err != nil && l.ctx.Err() == nil {
			l.config.Log.Error("a process is not watched any more", zap.Stringer("process", c.process), zap.Error(err))
		}
	})
}

// find returns the record of a process, which is there from its start until Events has told of its end. A process that another daemon has
// started gets one here.
func (l *Local) find(p Process) (*child, error) {
	l.mu.Lock()
	c := l.children[p]
	l.mu.Unlock()
	if c != nil {
		return c, nil
	}
	if p.Node != l.config.Node || p.Generation == 0 || !l.config.Processes.Alive(p.ID) {
		return nil, fmt.Errorf("%v: %w", p, ErrNoProcess)
	}
	c = &child{process: p, dir: l.dir(p.Job), processes: l.config.Processes, refused: l.config.Refused}
	c.logFrom, c.oom = logSize(c.dir), process.WatchOOM(p.ID.PID)
	l.watch(c)
	return c, nil
}

// Status implements Agent.
func (l *Local) Status(ctx context.Context, p Process) (s control.Status, err error) {
	c, err := l.find(p)
	if err == nil {
		s, err = c.client.Status(ctx)
	}
	return s, err
}

// Commit implements Agent.
func (l *Local) Commit(ctx context.Context, p Process, r control.CommitRequest) (answer control.CommitResponse, err error) {
	c, err := l.find(p)
	if err == nil {
		answer, err = c.client.Commit(ctx, r)
	}
	return answer, err
}

// Stop implements Agent.
func (l *Local) Stop(ctx context.Context, p Process) error {
	c, err := l.find(p)
	if err == nil {
		err = c.client.Abort(ctx)
	}
	return err
}

// Kill implements Agent.
func (l *Local) Kill(_ context.Context, p Process) error { return l.config.Processes.Kill(p.ID) }
