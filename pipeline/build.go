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

// build makes all stages on their executors, with the shards beside them and the runners that will train them.
func (g *Group) build(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	for _, d := range g.devices {
		group.Go(func() error {
			span := trace.Event{Stage: d.config.Index, Micro: -1}
			if err := d.executor.Do(inner, span, func() error { return g.buildDevice(d) }); err != nil {
				return fmt.Errorf("stage %d: %w", d.config.Index, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.built = true
	return g.checkBoundaries()
}

// buildDevice builds one stage of all pipelines. On its executor.
func (g *Group) buildDevice(d *device) error {
	for p := range g.config.Pipelines {
		s, err := d.config.Build(p)
		if err != nil {
			return fmt.Errorf("build it for pipeline %d: %w", p, err)
		}
		d.stages = append(d.stages, s)
		if err := g.checkShape(d.config.Index, s.Shape(), d.stages[0].Shape()); err != nil {
			return err
		}
	}
	if err := g.buildShard(d); err != nil {
		return err
	}
	for p, s := range d.stages {
		r := g.newRunner(d, p, s)
		if r.feeder = g.newFeeder(d, p, s); r.feeder != nil {
			d.feeders = append(d.feeders, r.feeder)
		}
		d.runners = append(d.runners, r)
	}
	return nil
}

func (g *Group) checkShape(index int, s, lead stage.Shape) error {
	first, last := index == 0, index == g.config.stages()-1
	switch {
	case s.First != first || s.Last != last:
		return fmt.Errorf("its Build made a stage with First %v and Last %v for stage %d of %d", s.First, s.Last, index, g.config.stages())
	case s.InputBytes != lead.InputBytes || s.OutputBytes != lead.OutputBytes || s.LabelBytes != lead.LabelBytes ||
		s.Parameters != lead.Parameters || s.StateVectors != lead.StateVectors:
		return errors.New("its Build made stages of different shapes for the pipelines")
	}
	return nil
}

// checkBoundaries compares stages that are neighbours here. Those on other nodes are compared frame by frame.
func (g *Group) checkBoundaries() error {
	for _, a := range g.devices {
		for _, b := range g.devices {
			if a.config.Index+1 != b.config.Index {
				continue
			}
			if out, in := a.stages[0].Shape().OutputBytes, b.stages[0].Shape().InputBytes; out != in {
				return fmt.Errorf("stage %d sends %d bytes for a micro-batch, stage %d takes %d", a.config.Index, out, b.config.Index, in)
			}
		}
	}
	return nil
}

// seat of a pipeline's runner on a device.
func (g *Group) seat(d *device, pipeline int) seat {
	return seat{pipeline: pipeline, index: d.config.Index, stages: g.config.stages(), generation: g.config.Generation}
}

func (g *Group) buildShard(d *device) error {
	c := &g.config
	members := make([]int, c.Pipelines)
	for p := range members {
		members[p] = p
	}
	needs := c.Method.Needs()
	machine, err := elastic.NewCenter(elastic.CenterConfig{Timing: needs.Timing, Round: c.StartRound, Pipelines: members})
	if err != nil {
		return err
	}
	if c.Evaluation != nil {
		d.eval = newEvaluator(g.seat(d, 0), c, d.config.EvaluationSource, d.executor)
		d.eval.stage = d.stages[0]
	}
	d.snaps = newSnapshotter(d.config.Index, c.tau(), c.Pipelines, d.executor, func(s *Snapshot) {
		if c.Events.OnSnapshot != nil {
			c.Events.OnSnapshot(s)
		}
	})
	d.shard = &shard{
		index: d.config.Index, config: c, executor: d.executor, stages: d.stages, rules: c.Method, needs: needs,
		snaps: d.snaps, eval: d.eval, machine: machine, inputs: make(chan input, c.Pipelines),
	}
	for range members {
		d.shard.released = append(d.shard.released, make(chan release, 1))
	}
	if err := d.shard.allocate(); err != nil {
		return err
	}
	if d.config.Restore != nil {
		return d.config.Restore.restore(d.shard)
	}
	return nil
}

func (g *Group) newRunner(d *device, p int, s stage.Stage) *runner {
	return &runner{
		walk: walk{
			seat: g.seat(d, p), ops: g.config.Plan[d.config.Index], micros: g.config.MicroBatches, stage: s, shape: s.Shape(),
			executor: d.executor, trace: g.config.Events.Trace, done: make(chan error, 1),
		},
		gate: g.gate, shard: d.shard, config: &g.config, ties: tiesOf(s),
		start: g.config.StartRound * g.config.tau(), fresh: d.snaps.fresh[p],
	}
}

// newFeeder makes what fills the data of a pipeline on its first and its last stage.
func (g *Group) newFeeder(d *device, p int, s stage.Stage) *feeder {
	seat := g.seat(d, p)
	if !seat.first() && !seat.last() {
		return nil
	}
	f := &feeder{
		seat: seat, source: d.config.Source(p), micros: g.config.MicroBatches, gate: g.gate,
		start: g.config.StartRound * g.config.tau(), inputs: s.Shape().InputBytes, labels: s.Shape().LabelBytes,
		turns: make(chan struct{}, feedAhead),
	}
	for range feedAhead {
		f.next()
	}
	return f
}

// evaluateStart starts the evaluation of the center that training starts from, if it is due.
func (g *Group) evaluateStart(ctx context.Context) error {
	round := g.config.StartRound
	if g.config.Evaluation == nil || !g.config.Evaluation.Due(round) {
		return nil
	}
	for _, d := range g.devices {
		if err := d.eval.claim(ctx); err != nil {
			return err
		}
		span := trace.Event{Kind: trace.Average, Stage: d.config.Index, Micro: -1, Step: round * g.config.tau()}
		err := d.executor.Do(ctx, span, func() error { d.eval.vector.Copy(d.shard.vectors.Center); return nil })
		if err != nil {
			return err
		}
		d.eval.due <- round
	}
	return nil
}

// closeStages frees the stages, on their executors.
func (g *Group) closeStages(ctx context.Context) error {
	var errs []error
	for _, d := range g.devices {
		for _, s := range d.stages {
			errs = append(errs, d.executor.Do(ctx, trace.Event{Stage: d.config.Index, Micro: -1}, s.Close))
		}
	}
	return errors.Join(errs...)
}
