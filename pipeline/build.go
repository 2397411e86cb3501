package pipeline

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/stage"
)

// build makes all stages on their executors, with their shards of the center and the runners that train them.
func (g *Group) build(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	for _, d := range g.devices {
		group.Go(func() error { return g.buildDevice(inner, d) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.built = true
	return nil
}

// buildDevice builds the stages of one device, one after the other, and a dispatcher for each pipeline.
func (g *Group) buildDevice(ctx context.Context, d *localDevice) error {
	for _, st := range d.stages {
		span := trace.Span{Stage: st.config.Index, Micro: -1}
		if err := d.executor.Do(ctx, span, func() error { return g.buildStage(st) }); err != nil {
			return fmt.Errorf("stage %d: %w", st.config.Index, err)
		}
	}
	for _, p := range g.config.here() {
		runners := make(map[int]*runner)
		for _, st := range d.stages {
			runners[st.config.Index] = st.runners[p]
		}
		w := &dispatcher{cells: cellsOf(g.config.Plan[d.row], runners, g.config.MicroBatches), executor: d.executor, queue: d.executor.queueOf(p), trace: g.config.Events.Trace}
		for _, l := range runners {
			l.dispatcher = w
		}
	}
	return nil
}

// buildStage builds one stage of all pipelines. On its executor.
func (g *Group) buildStage(st *localStage) error {
	n := g.config.Pipelines
	st.replicas, st.runners, st.feeders = make([]stage.Stage, n), make([]*runner, n), make([]*feeder, n)
	for _, p := range g.config.here() {
		s, err := st.config.Build(p)
		if err != nil {
			return fmt.Errorf("build it for pipeline %d: %w", p, err)
		}
		st.replicas[p] = s
		if ties := s.Ties(); len(ties) > 0 && g.config.Plan.Updates() > 0 {
			return fmt.Errorf("%s is tied to a parameter of another stage: their gradients cannot be added where the plan takes optimizer steps "+
				"inside of a batch; untie them, or use a plan without updates", ties[0].Name)
		}
	}
	if err := g.buildShard(st); err != nil {
		return err
	}
	for _, p := range g.config.here() {
		s := st.replicas[p]
		st.runners[p], st.feeders[p] = g.newRunner(st, p, s), g.newFeeder(st, p, s)
		st.runners[p].feeder = st.feeders[p]
	}
	return nil
}

// stageID names one stage of one pipeline.
func (g *Group) stageID(st *localStage, pipeline int) stageID {
	return stageID{pipeline: pipeline, index: st.config.Index, stages: len(g.placement), generation: g.config.Generation}
}

func (g *Group) buildShard(st *localStage) error {
	c := &g.config
	if c.evaluates() {
		st.eval = newEvaluator(g.stageID(st, 0), c, st)
	}
	length := st.lead().Shape().Parameters
	layout := st.config.Layout
	if layout == nil {
		layout = elastic.Whole(length)
	}
	slices, segments := newSlices(c, layout, st.config.Restore)
	st.snaps = newSnapshotter(st.config.Index, c, st.executor, len(segments), length)
	st.shard = &shard{
		index: st.config.Index, left: make([]int, c.Pipelines), capturing: make(map[int]uint64), config: c, executor: st.executor, stages: st.replicas, needs: c.Method.Needs(), layout: layout, slices: slices, segments: segments,
		snaps: st.snaps, eval: st.eval, inputs: make(chan input, (c.Pipelines+len(c.groups()))*len(segments)+1),
	}
	for range c.Pipelines + len(c.groups()) { // these, and the owners of segments
		st.shard.released = append(st.shard.released, make(chan release, len(segments)))
	}
	if err := st.shard.allocate(); err != nil {
		return err
	}
	st.snaps.drift, st.snaps.resumed = &st.shard.drift, st.config.Restore
	st.peers = newPeers(g, st)
	st.shard.peers = st.peers
	synchronous := false
	if r := st.config.Restore; r != nil {
		r.restore(st.shard)
		synchronous = r.Synchronous
	}
	return st.shard.bound(synchronous)
}

func (g *Group) newRunner(st *localStage, p int, s stage.Stage) *runner {
	row, across := g.config.Plan[g.placement[st.config.Index]], g.config.across()
	r := &runner{
		stageID: g.stageID(st, p), config: &g.config, gate: g.gate, shard: st.shard, stage: s, shape: s.Shape(), ties: tiesOf(s),
		outputs: newHanded(s.Buffers().Outputs), gradients: newHanded(s.Buffers().Gradients),
		groups: groupsOf(row, st.config.Index, across*g.config.MicroBatches), start: g.config.StartRound * g.config.tau(), fresh: st.snaps.fresh[p],
		across: across, updates: g.config.Plan.Updates(), done: make(chan outcome, across),
	}
	r.handover = newHandover(st.shard, p, s, func() uint64 { return r.step }, r.squares)
	return r
}

// newFeeder makes what fills the data of a pipeline on its first and its last stage.
func (g *Group) newFeeder(st *localStage, p int, s stage.Stage) *feeder {
	id := g.stageID(st, p)
	if !id.first() && !id.last() {
		return nil
	}
	ahead := feedAhead(g.config.Plan[g.placement[st.config.Index]], st.config.Index, g.config.MicroBatches)
	f := &feeder{
		stageID: id, source: st.config.Source(p), micros: g.config.MicroBatches, gate: g.gate,
		start: g.config.StartRound * g.config.tau(), inputs: s.Shape().InputBytes, labels: s.Shape().LabelBytes,
		credits: make(chan struct{}, ahead),
	}
	for range ahead {
		f.next()
	}
	return f
}

// evaluateStart starts the evaluation of the center that training starts from, if it is due.
func (g *Group) evaluateStart(ctx context.Context) error {
	round := g.config.StartRound
	if !g.config.evaluates() || !g.config.Evaluation.Due(round) {
		return nil
	}
	for _, st := range g.stages {
		if err := st.eval.claim(ctx); err != nil {
			return err
		}
		span := trace.Span{Kind: trace.Average, Stage: st.config.Index, Micro: -1, Step: round * g.config.tau()}
		err := st.executor.Do(ctx, span, func() error { st.eval.vector.Copy(st.shard.weights()); return nil })
		if err != nil {
			return err
		}
		st.eval.due <- round
	}
	return nil
}

// closeStages frees the stages, on their executors.
func (g *Group) closeStages(ctx context.Context) error {
	var errs []error
	for _, st := range g.stages {
		for _, s := range st.replicas {
			if s == nil {
				continue // it trains elsewhere, or could not be built
			}
			errs = append(errs, st.executor.Do(ctx, trace.Span{Stage: st.config.Index, Micro: -1}, s.Close))
		}
	}
	return errors.Join(errs...)
}
