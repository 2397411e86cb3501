package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/stage"
)

// Group trains N pipelines over the stages in this process.
type Group struct {
	config    Config
	placement []int // device of each stage: its row in the plan
	gate      *gate
	wiring    *wiring
	devices   []*localDevice // in the order in which Config.Stages names them
	stages    []*localStage  // in the order of Config.Stages
	park      func() parker

	mu       sync.Mutex // of what follows; taken before the gate's and the shards'
	built    bool       // the shards exist
	finished bool       // training is over, and everything rests
	over     bool       // no snapshot is taken any more
	wanted   bool       // the final round is to be snapshotted once everything rests
	ctx      context.Context
}

// localDevice is one device here: its executor and its stages.
type localDevice struct {
	row      int // of the plan
	executor *executor
	stages   []*localStage
}

// localStage is one stage here, of all pipelines, and all that runs on it.
type localStage struct {
	config   StageConfig
	executor *executor
	replicas []stage.Stage // by pipeline; nil of one that trains elsewhere, as below
	runners  []*runner
	feeders  []*feeder // on the first and the last stage; else nil
	peers    *peers
	shard    *shard
	snaps    *snapshotter
	eval     *evaluator // nil without evaluation
}

// lead is the stage of the first pipeline that trains here.
func (st *localStage) lead() stage.Stage {
	return st.replicas[slices.IndexFunc(st.replicas, func(s stage.Stage) bool { return s != nil })]
}

// New checks the configuration. Nothing starts before Run.
func New(c Config) (*Group, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Group{
		config: c, placement: c.Plan.Placement(), park: newParker,
		gate: &gate{tau: c.tau(), final: c.FinalRound, begun: c.StartRound},
	}, nil
}

// Run builds the stages, connects the links, trains, and ends everything it started before it returns: after the final round (see
// Config.Linger), when ctx ends, or at the first error. A Group runs once.
func (g *Group) Run(ctx context.Context) error {
	var executors errgroup.Group
	// They outlive ctx and any failure, to free the stages.
	ctxExecutors, stopExecutors := context.WithCancel(context.WithoutCancel(ctx))
	defer stopExecutors()
	local := make(map[int]*localStage)
	for _, s := range g.config.Stages {
		d := g.device(g.placement[s.Index])
		st := &localStage{config: s, executor: d.executor}
		d.stages, g.stages = append(d.stages, st), append(g.stages, st)
		local[s.Index] = st
	}
	for _, d := range g.devices {
		executors.Go(func() error { return d.executor.Run(ctxExecutors) })
	}
	g.wiring = newWiring(&g.config, local)
	err := cmp.Or(g.work(ctx), g.closeStages(ctxExecutors)) // a device that has failed says so again when it is closed
	stopExecutors()
	if cause := executors.Wait(); cause != nil { // an executor that could not start is why the rest failed
		return cause
	}
	return err
}

// device finds the device of a row of the plan, or makes it.
func (g *Group) device(row int) *localDevice {
	for _, d := range g.devices {
		if d.row == row {
			return d
		}
	}
	d := &localDevice{row: row, executor: &executor{trace: g.config.Events.Trace, parker: g.park()}}
	if attach := g.config.Attach; attach != nil {
		d.executor.attach = func() error { return attach(row) }
	}
	d.executor.queues = make([]underWay, 1)
	if of := g.config.Queues; of != nil {
		if q := of(row); q != nil {
			d.executor.queues, d.executor.use = make([]underWay, q.Count()), q.Use
		}
	}
	if serve := g.config.WhileWaiting; serve != nil && len(g.config.groups()) > 1 { // pipelines that share the device average in its time
		serve(row, d.executor.between)
	}
	g.devices = append(g.devices, d)
	return d
}

// work does everything between the start and the end of the executors.
func (g *Group) work(ctx context.Context) error {
	if err := g.build(ctx); err != nil {
		return err
	}
	tasks, inner := errgroup.WithContext(ctx)
	g.mu.Lock()
	g.ctx = inner
	g.mu.Unlock()
	closed := make(chan error, 1)
	// Whatever ends the tasks ends the links at once, and tells the other nodes.
	context.AfterFunc(inner, func() {
		var cause error
		if !g.isFinished() {
			cause = context.Cause(inner)
		}
		closed <- g.wiring.close(cause)
	})
	tasks.Go(func() error { return g.train(inner, tasks) })
	err := tasks.Wait() // ends inner
	err = errors.Join(err, <-closed)
	if ended := context.Cause(ctx); ended != nil && errors.Is(err, ended) {
		return fmt.Errorf("training stopped: %w", ended)
	}
	return err
}

func (g *Group) isFinished() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.finished
}

// train runs from the first link to the last snapshot.
func (g *Group) train(ctx context.Context, tasks *errgroup.Group) error {
	if err := g.wiring.connect(ctx); err != nil {
		return err
	}
	ctxShards, stopShards := context.WithCancel(ctx)
	defer stopShards()
	var shards, snaps, evals routines
	for _, st := range g.stages {
		shards.run(tasks, func() error { return st.shard.run(ctxShards) })
		snaps.run(tasks, func() error { return st.snaps.run(ctx) })
		if st.eval != nil {
			evals.run(tasks, func() error { return st.eval.run(ctx) })
		}
	}
	if err := g.evaluateStart(ctx); err != nil {
		return err
	}
	if g.config.Events.OnStarted != nil {
		g.config.Events.OnStarted()
	}
	if err := g.trainBatches(ctx, tasks); err != nil {
		return err
	}
	if err := g.rest(ctx, &evals); err != nil {
		return err
	}
	if g.config.Linger {
		<-ctx.Done()
		return nil
	}
	g.mu.Lock()
	g.over = true
	g.mu.Unlock()
	for _, st := range g.stages {
		if err := st.shard.await(ctx); err != nil { // the last snapshot is captured
			return err
		}
	}
	stopShards()
	shards.Wait()
	for _, st := range g.stages {
		close(st.snaps.jobs)
	}
	snaps.Wait()
	return nil
}

// routines are goroutines of one kind: the first error of any ends the group, and Wait returns when all have ended.
type routines struct{ sync.WaitGroup }

func (r *routines) run(tasks *errgroup.Group, f func() error) {
	r.Add(1)
	tasks.Go(func() error {
		defer r.Done()
		return f()
	})
}

// trainBatches runs all runners to the final round.
func (g *Group) trainBatches(ctx context.Context, tasks *errgroup.Group) error {
	ctxFeed, stopFeeding := context.WithCancel(ctx)
	defer stopFeeding()
	ctxRemotes, stopRemotes := context.WithCancel(ctx)
	defer stopRemotes()
	var feeders, runners, remotes routines
	for _, st := range g.stages {
		for _, f := range st.feeders {
			if f == nil {
				continue
			}
			feeders.run(tasks, func() error {
				if err := f.run(ctxFeed); ctxFeed.Err() == nil {
					return err
				}
				return nil // what it filled beyond the last step is not wanted
			})
		}
		for _, r := range st.runners {
			if r != nil {
				runners.run(tasks, func() error { return r.run(ctx) })
			}
		}
		for _, q := range st.peers.remotes {
			remotes.run(tasks, func() error { return q.run(ctxRemotes) })
		}
	}
	runners.Wait()
	for _, st := range g.stages {
		if err := st.peers.await(ctx, g.gate.last()); err != nil {
			return err
		}
	}
	stopRemotes()
	remotes.Wait()
	stopFeeding()
	feeders.Wait()
	return context.Cause(ctx)
}

// rest waits until the shards have completed the final round and the evaluations have ended.
func (g *Group) rest(ctx context.Context, evals *routines) error {
	for _, st := range g.stages {
		if err := st.shard.await(ctx); err != nil {
			return err
		}
		if st.eval != nil {
			close(st.eval.due)
		}
	}
	evals.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	g.mu.Lock()
	g.finished = true
	if g.wanted {
		g.captureFinal()
	}
	g.mu.Unlock()
	if g.config.Events.OnFinished != nil {
		g.config.Events.OnFinished(g.gate.last())
	}
	return nil
}

// gate decides which steps begin. All runners of a process share it, so that all stop after the same round.
type gate struct {
	tau uint64 // batches in a round

	mu    sync.Mutex
	final uint64 // last round
	begun uint64 // the round that the runner furthest ahead has begun
}

// begin reports whether step may begin.
func (g *gate) begin(step uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if step >= g.final*g.tau {
		return false
	}
	g.begun = max(g.begun, step/g.tau+1)
	return true
}

// lower ends training at a round, unless it ends earlier. It reports false where a runner has begun a later one.
func (g *gate) lower(final uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if final >= g.final {
		return true
	}
	if final < g.begun {
		return false
	}
	g.final = final
	return true
}

// last is the final round as things stand.
func (g *gate) last() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.final
}

// send puts v into c, unless ctx ends first.
func send[T any](ctx context.Context, c chan<- T, v T) error {
	select {
	case c <- v:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// receive takes from c, unless ctx ends first. What a closed channel gives is the zero value.
func receive[T any](ctx context.Context, c <-chan T) (v T, err error) {
	select {
	case v = <-c:
		return v, nil
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}
