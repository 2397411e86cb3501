package coordinator

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
)

const (
	tickEvery  = 100 * time.Millisecond // the longest pause between two ticks; most of what matters wakes the coordinator
	afterFail  = time.Second            // until a choice that could not be carried out is made again
	alarmAfter = time.Minute            // until choices of a job that cannot be carried out are an error in the log

	restFactor = 29          // times what a tick took, until the next one: ticks take a thirtieth of the time at most
	mostRest   = time.Second // who waits for a tick does not wait longer, however large the cluster

	longestTick = time.Second // between two ticks while this process runs; a longer time is one in which it was stopped
)

// Raft is the replicated state (raftlog.Log).
type Raft interface {
	State() *cluster.State
	Changed() (*cluster.State, <-chan struct{})
	Apply(ctx context.Context, c cluster.Command) (cluster.Result, error)
	Failed() <-chan struct{}
}

// Config configures a Coordinator. All but OnStop and Spare is required.
type Config struct {
	// Nodes are those of the cluster as of now, the coordinator's own first, which is always the same: the records of jobs, their logs
	// and all tunings are there. It is called once a tick; what it returns is not changed.
	Nodes  func() []Node
	Raft   Raft
	Limits func() Limits
	// DriftHold is how long the batch times of a tuned job must be beyond their bound, or back, before that is said.
	DriftHold time.Duration
	Log       *zap.Logger
	// Spare says of an ended job that something is still to be done with what is kept of it. Nil: there is none.
	Spare func(*cluster.Job) bool
	// OnStop is called when the coordinator begins to stop, with how long that may take. Nil: nobody is told.
	OnStop func(bound time.Duration)
}

// Limits may change while the coordinator runs.
type Limits struct {
	// ResponseTimeout is how long a worker may not answer before it is killed. Default of the daemon 30 s.
	ResponseTimeout time.Duration
	// RetryLimit is how many workers of a job may die, without a commit between them, before the job fails. Default 10. Obstacles that
	// pass, such as a full disk, are no deaths.
	RetryLimit int
	// RetryFirst is the pause before the second restart without a commit in between; the first is at once. It doubles with each, up
	// to RetryLongest. Default 500 ms, and 1 min: together with RetryLimit, about two minutes.
	RetryFirst, RetryLongest time.Duration
	// ResplitAfter is how long a node of a job must be gone, as its members agree, before the job goes on with fewer stages where no other node has room;
	// and how long there must be room for all of its groups and stages before it goes on with them. A group is dropped at once. Default 1 min.
	ResplitAfter time.Duration
	Retain       Retention // of ended jobs; default: no bound
}

// Coordinator decides and has its decisions carried out.
type Coordinator struct {
	config Config
	raft   Raft
	here   Node // the coordinator's own
	log    *zap.Logger
	specs  *spec.Cache
	laid   laidSpecs
	pins   pins
	litter litter
	Counts Counts // since the daemon started

	host
	background context.Context // of acts and watchers; ends when Run has
	end        context.CancelFunc
	stopping   context.Context // ends when the coordinator begins to stop
	stop       context.CancelFunc

	calls     chan func() // for the goroutine of Run: what was observed, how an act ended, what somebody asks for
	published atomic.Pointer[Published]
	members   atomic.Pointer[members]

	// Of the goroutine of Run.
	jobs     map[string]*observed
	seen     map[string]*seen           // by node
	recopyAt time.Time                  // when copies are counted next
	uncopied map[shard.Digest]time.Time // shards that could not be copied, and when they are tried again
	answered []chan struct{}            // to be closed when what was asked for is published
	reserved placement                  // of tunings that belong to no job
	ticked   time.Time                  // when the last tick was
	ways     links
}

// Counts are what happened to jobs.
type Counts struct {
	Done, Failed, Cancelled atomic.Uint64
	Commits, Deaths         atomic.Uint64
}

// errStopping is returned to those who ask when the coordinator stops.
var errStopping = errors.New("the daemon is stopping")

// New returns a coordinator that does not run yet. The caller runs or closes it.
func New(c Config) *Coordinator { return newOn(c, &process{}) }

// newOn is New on a host.
func newOn(c Config, h host) *Coordinator {
	background, end := context.WithCancel(context.Background())
	stopping, stop := context.WithCancel(context.Background())
	nodes := newMembers(c.Nodes())
	out := &Coordinator{
		config: c, raft: c.Raft, here: nodes.all[0], log: c.Log, specs: &spec.Cache{}, host: h, background: background, end: end, stopping: stopping, stop: stop,
		calls: make(chan func(), 64), jobs: map[string]*observed{}, seen: map[string]*seen{}, uncopied: map[shard.Digest]time.Time{},
		ways: links{known: map[[2]string]Link{}, failed: map[[2]string]time.Time{}},
	}
	out.members.Store(nodes)
	out.published.Store(&Published{Jobs: map[string]View{}, FreeCores: len(out.here.Cores)})
	return out
}

// Stopping ends when the coordinator begins to stop.
func (c *Coordinator) Stopping() context.Context { return c.stopping }

// End ends what runs in the background, and Run, which waits for it. Workers go on.
func (c *Coordinator) End() {
	c.stop()
	c.end()
}

// Close is End, and waits. It is for a coordinator that does not run.
func (c *Coordinator) Close() {
	c.End()
	c.join()
}

// Run observes, decides and acts until ctx has ended and nothing is left to do, or Raft has failed. Then workers go on.
func (c *Coordinator) Run(ctx context.Context) {
	defer c.Close()
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	asked := ctx.Done()
	for {
		state, changed := c.raft.Changed()
		began := c.now()
		idle := c.tick(state, ctx.Err() != nil) //nolint:contextcheck // what looks at data is bounded by itself
		took := c.now().Sub(began)
		for _, done := range c.answered {
			close(done)
		}
		c.answered = nil
		if idle && ctx.Err() != nil {
			return
		}
		select {
		case <-changed:
		case <-c.raft.Failed():
			return
		case <-c.background.Done(): // of End, as when this node does not lead any more
			return
		case <-ticker.C:
		case <-asked:
			asked = nil
			c.beginStop()
		case call := <-c.calls:
			call()
		}
		if !c.gather(min(restFactor*took, mostRest)) {
			return
		}
	}
}

// gather does what it is called for during a rest, and what has come together then. A tick of many jobs takes a while, and their workers say something all
// the time: the rest bounds the part of the time that ticks take. It returns false where nothing can be decided any more.
func (c *Coordinator) gather(rest time.Duration) bool {
	if rest > 0 {
		over := time.NewTimer(rest)
		defer over.Stop()
		for resting := true; resting; {
			select {
			case call := <-c.calls:
				call()
			case <-over.C:
				resting = false
			case <-c.raft.Failed():
				return false
			case <-c.background.Done():
				return false
			}
		}
	}
	for range len(c.calls) {
		(<-c.calls)()
	}
	return true
}

// call has something done by the coordinator's goroutine, unless that has ended.
func (c *Coordinator) call(do func()) {
	select {
	case c.calls <- do:
	case <-c.background.Done():
	}
}

// beginStop makes known that the coordinator stops, and how long it may take.
func (c *Coordinator) beginStop() {
	bound := time.Duration(0)
	for _, o := range c.jobs {
		bound = max(bound, o.stopBound()+abortGrace)
	}
	c.stop()
	c.log.Info("stopping: jobs commit the round they are in", zap.Duration("bound", bound))
	if c.config.OnStop != nil {
		c.config.OnStop(bound)
	}
}

// ask has something done by the coordinator's goroutine, and returns once it was and was published.
func (c *Coordinator) ask(ctx context.Context, do func()) error {
	done := make(chan struct{})
	select {
	case c.calls <- func() { do(); c.answered = append(c.answered, done) }:
	case <-c.background.Done():
		return errStopping
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-done:
		return nil
	case <-c.background.Done():
		return errStopping
	}
}

// job returns what was observed of a job.
func (c *Coordinator) job(id string) *observed {
	o := c.jobs[id]
	if o == nil {
		o = &observed{}
		c.jobs[id] = o
	}
	return o
}

// Spec returns what was admitted as a job, as it is laid over the nodes that it has while it has any. It may be called concurrently.
func (c *Coordinator) Spec(j *cluster.Job) (*spec.Spec, error) {
	s, err := c.specs.Get(j.ID, j.Spec, j.Report)
	if err != nil || !placed(j) {
		return s, err
	}
	return c.laid.over(j, s), nil
}

// start does something in the background. What it returns changes the job.
func (c *Coordinator) start(job string, act bool, do func(ctx context.Context) (func(*observed), error)) {
	c.spawn(func() {
		change, err := do(c.background)
		c.call(func() { c.conclude(job, act, change, err) })
	})
}

// Say writes a line to the daemon's log and to the job's.
func (c *Coordinator) Say(job, message string, fields ...zap.Field) {
	c.sayAt(zap.InfoLevel, job, message, fields...)
}

// sayAt is Say with a level.
func (c *Coordinator) sayAt(level zapcore.Level, job, message string, fields ...zap.Field) {
	c.log.Log(level, message, append([]zap.Field{zap.String("job", job)}, fields...)...)
	c.here.Agent.Log(job, level, message, fields...)
}
