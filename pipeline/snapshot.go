package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// Snapshot is one stage's part of a round, a consistent cut: the center after the round, and each pipeline as it left it. A
// group that restores it and goes on computes the same bits as one that never stopped.
type Snapshot struct {
	Stage int
	Round uint64
	Count int // pipelines whose updates are in the round
	// InFlight is of how many layers of the model, from the input, State[0] is a mean gradient that is not applied yet. Where the method of one that is restored has fewer late
	// layers, that of the others is applied before the next step; where it has more, the others begin to be late.
	InFlight int
	// Synchronous: the next round is, by the bound of the pipelines' drift.
	Synchronous bool
	Center      []float32       // may share memory with Pipelines[0].Parameters
	State       [][]float32     // elastic.Needs.Keeps vectors of the averaging method
	Pipelines   []PipelineState // of those that train here, ascending; none with Config.CenterOnly: then each restarts from the center
}

// PipelineState is one pipeline's part of a Snapshot.
type PipelineState struct {
	Pipeline   int
	Step       uint64 // batches consumed
	Updates    uint64 // of which this many are in State, or in flight: fewer than Step when it restarted from a center
	Parameters []float32
	State      [][]float32 // the optimizer's
	Predicted  []float32   // the weights that the next batch is computed with, with elastic.Needs.Predicts
	Message    []float32   // the pipeline's of the round, with elastic.Needs.Earlier
	Residual   []float32   // what rounding has left out of its messages, with elastic.Precision.Feedback; nil of one that is restored: nothing
}

// copyChunk is how many elements one visit to the device reads: 1 MiB, some 0.1 to 0.3 ms, less than a micro-batch.
const copyChunk = 1 << 18

// snapshotter copies vectors to host memory while training goes on. A capture only notes what must be read; the reading is
// done in chunks between other work on the executor, on the queue of the pipeline that owns the vector, beside the passes of others where the device has several.
// Whatever is about to change a vector reads the rest of its owner's vectors first. So a snapshot costs training the copying and no wait, and no second set of vectors.
type snapshotter struct {
	index    int
	config   *Config
	needs    elastic.Needs
	resumed  *Snapshot // that the run goes on from; nil: from none
	drift    *drift    // of the shard
	segments int       // of the stage, whose vectors have this length
	length   int
	tau      uint64
	fresh    []uint64 // by pipeline: the step at which its optimizer state was zero
	executor *executor
	deliver  func(*Snapshot)
	jobs     chan capture // to run, from the shard's goroutine

	// Used by closures on the executor, and by enqueue between them.
	open   map[uint64]*taking // captured in part
	unread map[int][]*copier  // by owner

	mu      sync.Mutex
	ordered []capture   // since the last enqueue
	free    []*Snapshot // buffers for reuse
}

// taking is a snapshot that is being taken.
type taking struct {
	snapshot  *Snapshot
	uncovered int // captures that are missing; on the executor
	unread    int // captures that are to be read; run's
}

// capture is a part of a snapshot to be read.
type capture struct {
	of    *taking
	owner int
	parts []*copier
}

// copier reads one vector.
type copier struct {
	from flat.Vector
	to   []float32
	done int // elements read
}

func (c *copier) read(n int) {
	if n = min(n, len(c.to)-c.done); n > 0 {
		c.from.Read(c.to[c.done:c.done+n], c.done)
		c.done += n
	}
}

func newSnapshotter(index int, c *Config, e *executor, segments, length int) *snapshotter {
	return &snapshotter{
		index: index, config: c, needs: c.Method.Needs(), segments: segments, length: length, tau: c.tau(), fresh: make([]uint64, c.Pipelines), executor: e, deliver: c.Events.OnSnapshot,
		jobs: make(chan capture, 2*(c.Pipelines+segments)), // two snapshots may be on their way before the shard waits for the reader
		open: make(map[uint64]*taking), unread: make(map[int][]*copier),
	}
}

// run reads what is captured and delivers what is complete, until jobs is closed or ctx ends.
func (s *snapshotter) run(ctx context.Context) error {
	for {
		select {
		case c, ok := <-s.jobs:
			if !ok {
				return nil
			}
			if err := s.read(ctx, c); err != nil {
				return &Error{Pipeline: -1, Stage: s.index, Op: fmt.Sprintf("snapshot of round %d", c.of.snapshot.Round), Err: err}
			}
			if c.of.unread--; c.of.unread == 0 {
				if s.deliver != nil {
					s.deliver(c.of.snapshot)
				}
				s.mu.Lock()
				s.free = append(s.free, c.of.snapshot)
				s.mu.Unlock()
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// read visits the device until all parts of c are in host memory.
func (s *snapshotter) read(ctx context.Context, c capture) error {
	span := trace.Span{Kind: trace.Commit, Stage: s.index, Micro: -1, Step: c.of.snapshot.Round * s.tau}
	queue := s.executor.queueOf(max(0, c.owner)) // a center was written before all that this one is given
	for _, part := range c.parts {
		for complete := false; !complete; {
			err := s.executor.doOn(ctx, queue, span, func() error {
				part.read(copyChunk)
				complete = part.done == len(part.to)
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readRest reads the rest of an owner's vectors. On the executor.
func (s *snapshotter) readRest(owner int) {
	for _, c := range s.unread[owner] {
		c.read(len(c.to))
	}
	delete(s.unread, owner)
}

// capturePipeline notes a pipeline's weights and state for the snapshot of a round. On the executor.
func (s *snapshotter) capturePipeline(round uint64, sh *shard, pipeline int) {
	from := sh.stages[pipeline]
	switch t := s.of(round); {
	case !s.config.CenterOnly:
		snap := t.snapshot
		snap.Pipelines = extend(snap.Pipelines)
		state := &snap.Pipelines[len(snap.Pipelines)-1]
		step := round * s.tau
		state.Pipeline, state.Step, state.Updates = pipeline, step, step-s.fresh[pipeline]
		parts := []*copier{s.copier(&state.Parameters, from.Parameters())}
		if s.needs.Predicts {
			parts = append(parts, s.copier(&state.Predicted, from.Predicted()))
		}
		if s.needs.Earlier {
			parts = append(parts, s.copier(&state.Message, sh.message(pipeline, round)))
		}
		if sh.residuals != nil {
			parts = append(parts, s.copier(&state.Residual, sh.residuals[pipeline]))
		}
		s.order(pipeline, t, append(parts, s.copiers(&state.State, from.State())...))
	case s.needs.Gradients && pipeline == s.config.here()[0]: // its weights are the center
		s.order(pipeline, t, []*copier{s.copier(&t.snapshot.Center, from.Parameters())})
	}
}

// captureCenter notes a segment's center, and what the method keeps of it, for the snapshot of a round. On the executor.
func (s *snapshotter) captureCenter(round uint64, count int, of *segment) {
	t := s.of(round)
	t.snapshot.InFlight = s.needs.InFlight(round)
	if from := s.resumed; from != nil && round == from.Round { // it has trained nothing since
		t.snapshot.InFlight = min(t.snapshot.InFlight, from.InFlight)
	}
	t.snapshot.Count, t.snapshot.Synchronous = count, s.drift.Synchronous() // the segment that completes the round last decides
	var parts []*copier
	for j, v := range of.needs.Kept(of.vectors) {
		parts = append(parts, &copier{from: v, to: t.snapshot.State[j][of.From:of.To]})
	}
	if !s.needs.Gradients && (!s.needs.Identity || s.config.CenterOnly) {
		if len(t.snapshot.Center) != s.length {
			t.snapshot.Center = make([]float32, s.length)
		}
		parts = append(parts, &copier{from: of.vectors.Center, to: t.snapshot.Center[of.From:of.To]})
	}
	s.order(of.keeper(), t, parts)
}

// captures is how many make a snapshot: of the segments' centers, and of the pipelines here.
func (s *snapshotter) captures() int {
	switch {
	case !s.config.CenterOnly:
		return s.segments + len(s.config.here())
	case s.needs.Gradients:
		return s.segments + 1
	}
	return s.segments
}

// of is the snapshot of a round, on memory of an earlier one if there is any.
func (s *snapshotter) of(round uint64) *taking {
	if t := s.open[round]; t != nil {
		return t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := &Snapshot{}
	if n := len(s.free); n > 0 {
		snap, s.free = s.free[n-1], s.free[:n-1]
	}
	snap.Stage, snap.Round, snap.Pipelines = s.index, round, snap.Pipelines[:0]
	for len(snap.State) < s.needs.Keeps() {
		snap.State = append(snap.State, make([]float32, s.length))
	}
	t := &taking{snap, s.captures(), s.captures()}
	s.open[round] = t
	return t
}

// extend makes a slice one longer, keeping what an earlier use left in its memory.
func extend(s []PipelineState) []PipelineState {
	if len(s) < cap(s) {
		return s[:len(s)+1]
	}
	return append(s, PipelineState{})
}

func (s *snapshotter) copier(to *[]float32, from flat.Vector) *copier {
	if len(*to) != from.Len() {
		*to = make([]float32, from.Len())
	}
	return &copier{from: from, to: *to}
}

// copiers are those of several vectors.
func (s *snapshotter) copiers(to *[][]float32, from []flat.Vector) []*copier {
	if len(*to) != len(from) {
		*to = make([][]float32, len(from))
	}
	parts := make([]*copier, len(from))
	for j, v := range from {
		parts[j] = s.copier(&(*to)[j], v)
	}
	return parts
}

// order has a capture read. With the last one of a snapshot all that it has is known.
func (s *snapshotter) order(owner int, t *taking, parts []*copier) {
	s.unread[owner] = append(s.unread[owner], parts...)
	if t.uncovered--; t.uncovered == 0 {
		snap := t.snapshot
		delete(s.open, snap.Round)
		slices.SortFunc(snap.Pipelines, func(a, b PipelineState) int { return cmp.Compare(a.Pipeline, b.Pipeline) }) // they came as they arrived
		if len(snap.Pipelines) > 0 && (s.needs.Identity || s.needs.Gradients) {
			snap.Center = snap.Pipelines[0].Parameters
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ordered = append(s.ordered, capture{t, owner, parts})
}

// enqueue gives what was captured to run. It waits when two snapshots are still on their way: a consumer that is too slow
// holds up the center rather than filling memory.
func (s *snapshotter) enqueue(ctx context.Context) error {
	s.mu.Lock()
	captured := s.ordered
	s.ordered = nil
	s.mu.Unlock()
	for _, c := range captured {
		if err := send(ctx, s.jobs, c); err != nil {
			return err
		}
	}
	return nil
}

// restore writes a snapshot back, whose vectors must be of the stage's lengths. A pipeline that it does not have starts from the center; with exchanged
// gradients as the others, whose state must be its own as well. On the executor.
func (s *Snapshot) restore(sh *shard) {
	if !sh.needs.Gradients {
		sh.vectors.Center.Write(s.Center, 0)
	}
	for _, of := range sh.segments {
		for j, v := range of.needs.Kept(of.vectors) {
			v.Write(s.State[j][of.From:of.To], 0)
		}
	}
	for p, st := range sh.stages {
		if st == nil {
			continue
		}
		if at := s.source(sh, p); at >= 0 {
			s.Pipelines[at].restore(sh, p, s.Round)
			sh.snaps.fresh[p] = s.Pipelines[at].Step - s.Pipelines[at].Updates
			continue
		}
		st.Parameters().Write(s.Center, 0)
		for _, v := range st.State() {
			v.Zero()
		}
		if sh.needs.Predicts {
			st.Predicted().Write(s.Center, 0)
		}
		sh.snaps.fresh[p] = s.Round * sh.config.tau()
	}
}

// source is which of the snapshot's pipelines one goes on from; -1: from the center.
func (s *Snapshot) source(sh *shard, pipeline int) int {
	at := slices.IndexFunc(s.Pipelines, func(from PipelineState) bool { return from.Pipeline == pipeline })
	if at < 0 && sh.needs.Gradients && len(s.Pipelines) > 0 {
		return 0
	}
	return at
}

// restore writes a pipeline's part back. On the executor.
func (s *PipelineState) restore(to *shard, pipeline int, round uint64) {
	of := to.stages[pipeline]
	of.Parameters().Write(s.Parameters, 0)
	for j, v := range of.State() {
		v.Write(s.State[j], 0)
	}
	if to.needs.Predicts {
		of.Predicted().Write(s.Predicted, 0)
	}
	if to.needs.Earlier {
		to.message(pipeline, round).Write(s.Message, 0)
	}
	if to.residuals != nil && s.Residual != nil && s.Pipeline == pipeline { // not that of another one
		to.residuals[pipeline].Write(s.Residual, 0)
	}
}
