package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// Snapshot is one stage's part of a round, a consistent cut: the center after the round, and each pipeline as it left it. A
// group that restores it and goes on computes the same bits as one that never stopped.
type Snapshot struct {
	Stage     int
	Round     uint64
	Count     int             // pipelines whose updates are in the round
	Center    []float32       // may share memory with Pipelines[0].Parameters
	Pipelines []PipelineState // of those that train here, ascending; none with Config.CenterOnly: then each restarts from the center
}

// PipelineState is one pipeline's part of a Snapshot.
type PipelineState struct {
	Pipeline   int
	Step       uint64 // batches consumed
	Updates    uint64 // of which this many are in State: fewer than Step when it restarted from a center
	Parameters []float32
	State      [][]float32 // the optimizer's
}

// copyChunk is how many elements one visit to the device reads: 1 MiB, some 0.1 to 0.3 ms, less than a micro-batch.
const copyChunk = 1 << 18

// centerOwner owns the center's vectors, as pipelines own theirs.
const centerOwner = -1

// snapshotter copies vectors to host memory while training goes on. A capture only notes what must be read; the reading is
// done in chunks between other work on the executor. Whatever is about to change a vector reads the rest of its owner's
// vectors first. So a snapshot costs training the copying and no wait, and no second set of vectors.
type snapshotter struct {
	index    int
	tau      uint64
	fresh    []uint64 // by pipeline: the step at which its optimizer state was zero
	executor *executor
	deliver  func(*Snapshot)
	jobs     chan capture // to run, from the shard's goroutine

	// Used by closures on the executor, and by enqueue between them.
	open    map[uint64]*Snapshot // captured in part
	unread  map[int][]*copier    // by owner
	ordered []capture            // since the last enqueue

	mu   sync.Mutex
	free []*Snapshot // buffers for reuse
}

// capture is a part of a snapshot to be read.
type capture struct {
	snapshot *Snapshot
	parts    []*copier
	last     bool // with it the snapshot is complete
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

func newSnapshotter(index int, c *Config, e *executor) *snapshotter {
	return &snapshotter{
		index: index, tau: c.tau(), fresh: make([]uint64, c.Pipelines), executor: e, deliver: c.Events.OnSnapshot,
		jobs: make(chan capture, 2*(c.Pipelines+1)), // two snapshots may be on their way before the shard waits for the reader
		open: make(map[uint64]*Snapshot), unread: make(map[int][]*copier),
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
				return &Error{Pipeline: -1, Stage: s.index, Op: fmt.Sprintf("snapshot of round %d", c.snapshot.Round), Err: err}
			}
			if c.last {
				if s.deliver != nil {
					s.deliver(c.snapshot)
				}
				s.mu.Lock()
				s.free = append(s.free, c.snapshot)
				s.mu.Unlock()
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// read visits the device until all parts of c are in host memory.
func (s *snapshotter) read(ctx context.Context, c capture) error {
	span := trace.Span{Kind: trace.Commit, Stage: s.index, Micro: -1, Step: c.snapshot.Round * s.tau}
	for _, part := range c.parts {
		for complete := false; !complete; {
			err := s.executor.Do(ctx, span, func() error {
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
func (s *snapshotter) capturePipeline(round uint64, pipeline int, from stage.Stage) {
	snap := s.of(round)
	snap.Pipelines = extend(snap.Pipelines)
	state := &snap.Pipelines[len(snap.Pipelines)-1]
	state.Pipeline, state.Step, state.Updates = pipeline, round*s.tau, round*s.tau-s.fresh[pipeline]
	parts := []*copier{s.copier(&state.Parameters, from.Parameters())}
	vectors := from.State()
	if len(state.State) != len(vectors) {
		state.State = make([][]float32, len(vectors))
	}
	for j, v := range vectors {
		parts = append(parts, s.copier(&state.State[j], v))
	}
	s.order(pipeline, capture{snapshot: snap, parts: parts})
}

// captureCenter notes the center for the snapshot of a round, which it completes. shared says that the center is the only
// pipeline's weights. On the executor.
func (s *snapshotter) captureCenter(round uint64, count int, from elastic.Shard, shared bool) {
	snap := s.of(round)
	delete(s.open, round)
	snap.Count = count
	slices.SortFunc(snap.Pipelines, func(a, b PipelineState) int { return cmp.Compare(a.Pipeline, b.Pipeline) }) // they came as they arrived
	var parts []*copier
	if shared && len(snap.Pipelines) == 1 {
		snap.Center = snap.Pipelines[0].Parameters
	} else {
		parts = append(parts, s.copier(&snap.Center, from.Center))
	}
	s.order(centerOwner, capture{snapshot: snap, parts: parts, last: true})
}

// of is the snapshot of a round, on memory of an earlier one if there is any.
func (s *snapshotter) of(round uint64) *Snapshot {
	if snap := s.open[round]; snap != nil {
		return snap
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := &Snapshot{}
	if n := len(s.free); n > 0 {
		snap, s.free = s.free[n-1], s.free[:n-1]
	}
	snap.Stage, snap.Round, snap.Pipelines = s.index, round, snap.Pipelines[:0]
	s.open[round] = snap
	return snap
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

func (s *snapshotter) order(owner int, c capture) {
	s.unread[owner] = append(s.unread[owner], c.parts...)
	s.ordered = append(s.ordered, c)
}

// enqueue gives what was captured to run. It waits when two snapshots are still on their way: a consumer that is too slow
// holds up the center rather than filling memory.
func (s *snapshotter) enqueue(ctx context.Context) error {
	captured := s.ordered
	s.ordered = nil
	for _, c := range captured {
		if err := send(ctx, s.jobs, c); err != nil {
			return err
		}
	}
	return nil
}

// restore writes a snapshot back, whose vectors must be of the stage's lengths. A pipeline that it does not have starts from the center. On
// the executor.
func (s *Snapshot) restore(sh *shard) {
	sh.vectors.Center.Write(s.Center, 0)
	for p, st := range sh.stages {
		if st == nil {
			continue
		}
		st.Parameters().Write(s.Center, 0)
		for _, v := range st.State() {
			v.Zero()
		}
		sh.snaps.fresh[p] = s.Round * sh.config.tau()
	}
	for _, from := range s.Pipelines {
		st := sh.stages[from.Pipeline]
		if st == nil {
			continue
		}
		st.Parameters().Write(from.Parameters, 0)
		for j, v := range st.State() {
			v.Write(from.State[j], 0)
		}
		sh.snaps.fresh[from.Pipeline] = from.Step - from.Updates
	}
}
