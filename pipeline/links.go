package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
)

// wiring makes the links of a group's stages and knows all of them, to close.
type wiring struct {
	config *Config
	stages int                 // of the pipeline, here and elsewhere
	local  map[int]*localStage // by stage
	depth  []int               // by link k -> k+1
	device []int               // of each stage: its row of the plan

	mu     sync.Mutex
	closed bool
	cause  error
	all    []wire.End
	movers []*wire.Mover
	routes map[[2]int]*route // from stage to stage, where boundaries are copied from device to device
}

func newWiring(c *Config, local map[int]*localStage) *wiring {
	w := &wiring{config: c, stages: c.Plan.Stages(), local: local, device: c.Plan.Placement(), routes: map[[2]int]*route{}}
	for _, inFlight := range schedule.InFlightByStage(c.Plan)[:w.stages-1] {
		w.depth = append(w.depth, inFlight+1) // a sender never waits for its receiver; and the norm, behind the messages
	}
	return w
}

// keep takes an end to close with the others. When they are closed already, it is closed at once.
func (w *wiring) keep(ends ...wire.End) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.all = append(w.all, ends...)
		return nil
	}
	err := w.cause
	for _, e := range ends {
		err = errors.Join(err, e.Close(w.cause))
	}
	return err
}

// close closes all ends at once: with a cause, so that other nodes learn of it, or in order.
func (w *wiring) close(cause error) error {
	w.mu.Lock()
	all, movers, routes := w.all, w.movers, w.routes
	w.all, w.movers, w.routes, w.closed, w.cause = nil, nil, nil, true, cause
	w.mu.Unlock()
	var closing errgroup.Group
	for _, e := range all {
		closing.Go(func() error { return e.Close(cause) })
	}
	err := closing.Wait()
	for _, m := range movers {
		m.Close()
	}
	for _, r := range routes {
		err = errors.Join(err, r.close())
	}
	return err
}

// connect makes every link of the group. Those to other nodes are made at the same time, since nodes start in any order.
func (w *wiring) connect(ctx context.Context) error {
	if err := w.openRoutes(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range w.config.here() {
		for k := range w.stages - 1 {
			l := wire.Link{Purpose: wire.Training, Pipeline: p, Lower: k, Upper: k + 1}
			w.join(ctx, group, l, w.depth[k], max(w.boundary(k), squaresBytes),
				func(e wire.End) { w.local[k].runners[p].down = e },
				func(e wire.End) { w.local[k+1].runners[p].up = e })
		}
		w.connectTies(ctx, group, p)
		w.connectSources(group, p)
	}
	w.connectPeers(ctx, group)
	if w.config.evaluates() {
		for k := range w.stages - 1 {
			l := wire.Link{Purpose: wire.Evaluated, Pipeline: 0, Lower: k, Upper: k + 1}
			w.join(ctx, group, l, 2, w.boundary(k),
				func(e wire.End) { w.local[k].eval.down = e },
				func(e wire.End) { w.local[k+1].eval.up = e })
		}
	}
	return group.Wait()
}

// boundary is the bytes of a micro-batch between stages k and k+1, one of which lives here if it matters.
func (w *wiring) boundary(k int) int {
	if st := w.local[k]; st != nil {
		return st.lead().Shape().OutputBytes
	}
	if st := w.local[k+1]; st != nil {
		return st.lead().Shape().InputBytes
	}
	return 0
}

// memory is what makes payloads of a link between two stages, for the first of them that lives here and has a wish.
func (w *wiring) memory(stages ...int) func(n int) []byte {
	for _, k := range stages {
		if st := w.local[k]; st != nil {
			if host := st.lead().Buffers().Host; host != nil {
				return host
			}
		}
	}
	return nil
}

// join makes one link if either of its stages lives here, with the lines of the network between its two devices.
func (w *wiring) join(ctx context.Context, group *errgroup.Group, l wire.Link, depth, most int, lower, upper func(wire.End)) {
	hasLower, hasUpper := w.local[l.Lower] != nil, w.local[l.Upper] != nil
	if !hasLower && !hasUpper {
		return
	}
	group.Go(func() error {
		from, to := w.device[l.Lower], w.device[l.Upper]
		s := wire.Spec{
			Generation: w.config.Generation, Depth: depth, MaxBytes: most, Trace: w.config.Events.Trace, Memory: w.memory(l.Lower, l.Upper),
			Down: w.config.Network.Line(from, to), Up: w.config.Network.Line(to, from),
		}
		if err := w.move(l, &s); err != nil {
			return err
		}
		switch {
		case hasLower && hasUpper:
			return w.pair(s, lower, upper)
		case hasLower:
			return w.reach(ctx, l, false, s, lower)
		}
		return w.reach(ctx, l, true, s, upper)
	})
}

func (w *wiring) pair(s wire.Spec, lower, upper func(wire.End)) error {
	a, b, err := wire.NewPair(s)
	if err != nil {
		return err
	}
	lower(a)
	upper(b)
	return w.keep(a, b)
}

func (w *wiring) reach(ctx context.Context, l wire.Link, upper bool, s wire.Spec, set func(wire.End)) error {
	e, err := w.config.Connect(ctx, l, upper, s)
	if err != nil {
		return fmt.Errorf("connect the %v: %w", l, err)
	}
	set(e)
	return w.keep(e)
}

// connectTies links the first and the last stage when parameters are tied across them.
func (w *wiring) connectTies(ctx context.Context, group *errgroup.Group, p int) {
	first, last := 0, w.stages-1
	most, count := 0, 0
	for _, k := range []int{first, last} {
		if st := w.local[k]; st != nil && first != last {
			count = max(count, len(st.runners[p].ties))
			for _, t := range st.runners[p].ties {
				most = max(most, 4*t.gradient.Len())
			}
		}
	}
	if count == 0 {
		return
	}
	l := wire.Link{Purpose: wire.Ties, Pipeline: p, Lower: first, Upper: last}
	if w.config.NoiseEvery > 0 {
		count *= 2 // those of the first micro-batch as well
	}
	w.join(ctx, group, l, count, most,
		func(e wire.End) { w.local[first].runners[p].tie = e },
		func(e wire.End) { w.local[last].runners[p].tie = e })
}

// connectSources links a pipeline's feeders to its first and its last stage.
func (w *wiring) connectSources(group *errgroup.Group, p int) {
	last := w.stages - 1
	spec := func(k, bytes int) wire.Spec {
		ahead := feedAhead(w.config.Plan[w.device[k]], k, w.config.MicroBatches)
		return wire.Spec{Generation: w.config.Generation, Depth: ahead * w.config.MicroBatches, MaxBytes: max(bytes, 1), Memory: w.memory(k)}
	}
	if st := w.local[0]; st != nil {
		group.Go(func() error {
			return w.pair(spec(0, st.replicas[p].Shape().InputBytes),
				func(e wire.End) { st.feeders[p].input = e },
				func(e wire.End) { st.runners[p].up = e })
		})
	}
	if st := w.local[last]; st != nil {
		group.Go(func() error {
			return w.pair(spec(last, st.replicas[p].Shape().LabelBytes),
				func(e wire.End) { st.feeders[p].targets = e },
				func(e wire.End) { st.runners[p].targets = e })
		})
	}
}

// tiesOf are the tied gradients that a stage exchanges with the other end of its pipeline.
func tiesOf(s stage.Stage) []tie {
	var ties []tie
	for _, t := range s.Ties() {
		ties = append(ties, tie{name: t.Name, gradient: t.Gradient, host: make([]float32, t.Gradient.Len())})
	}
	return ties
}
