package pipeline

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// shard is the center's part of one stage, in the memory of the stage's device, segment by segment: it hands every input to the segment's elastic.Center and executes
// the actions that come back, in order, on the device's executor. One goroutine (run) does so for all pipelines; a pipeline
// waits only for its own releases, and merging goes on while it trains.
type shard struct {
	index     int
	config    *Config
	executor  *executor
	stages    []stage.Stage   // by pipeline; nil of one that trains elsewhere
	peers     *peers          // the processes of other groups
	needs     elastic.Needs   // of the method; those of a slice may ask for less
	vectors   elastic.Shard   // of the whole stage; those of slices and segments are parts of them, as of messages
	messages  [][]flat.Vector // by pipeline, Needs.Buffers each; none where the gradient is the message, or elsewhere
	residuals []flat.Host     // by pipeline here: what rounding has left out of its messages; nil where the precision keeps nothing
	arrived   arrivals        // messages of other groups
	layout    elastic.Layout  // of the stage's vector
	slices    []*slice        // several only of methods that treat layers differently
	segments  []*segment      // of the slices, ascending
	moved     flat.Vector     // the update of a step, with Needs.Moved
	drift     drift
	snaps     *snapshotter
	eval      *evaluator // nil without evaluation

	left      []int          // by pipeline: segments in which it has left the round that it is captured for; on the executor
	capturing map[int]uint64 // pipeline -> the round that it is captured for once its update is applied; with exchanged gradients; on the executor

	early    []input        // of a round that not all segments may begin yet
	claimed  uint64         // the newest round for whose evaluation the vector is claimed
	inputs   chan input     // capacity for one of each member and segment, and one more
	released []chan release // by pipeline; capacity for one of each segment

	mu sync.Mutex // of the slices' centers: Commit asks them from other goroutines
}

// input is what the shard's goroutine is told: a member has handed over its message of a segment or, with sync, the caller waits until all before it
// is done.
type input struct {
	segment  *segment
	pipeline int
	round    uint64
	ready    bool          // the message is where it must be
	capture  bool          // snapshot the final round, in which everything rests
	sync     chan struct{} // closed when all inputs before are done
}

// release lets a pipeline go on, as far as a segment is concerned.
type release struct {
	segment *segment
	round   uint64
	started time.Duration // when its averaging reached the device
}

// average ends a round of one pipeline, of which some segments may be handed over already, and returns when it may begin the next one.
func (s *shard) average(ctx context.Context, id stageID, round uint64, handed *handover) error {
	span := id.span(trace.WaitAverage, round*s.config.tau()-1, -1)
	span.Start = trace.Now()
	for _, part := range s.segments {
		if handed.has(part) {
			continue
		}
		if err := send(ctx, s.inputs, input{segment: part, pipeline: id.pipeline, round: round}); err != nil {
			return err
		}
	}
	span.End = span.Start
	for range s.segments {
		r, err := receive(ctx, s.released[id.pipeline])
		if err != nil {
			return err
		}
		span.End = max(span.End, r.started)
		if r.round != round {
			return fmt.Errorf("released from round %d, waits for round %d", r.round, round)
		}
	}
	s.config.Events.Trace.Emit(span)
	return nil
}

// run executes inputs until ctx ends.
func (s *shard) run(ctx context.Context) error {
	for {
		select {
		case in := <-s.inputs:
			if err := s.take(ctx, in); err != nil {
				return &Error{Pipeline: -1, Stage: s.index, Op: fmt.Sprintf("center, round %d", in.round), Err: err}
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *shard) take(ctx context.Context, in input) error {
	switch {
	case in.sync != nil:
		close(in.sync)
		return nil
	case in.capture:
		return s.captureAll(ctx, in.round)
	}
	if !s.needs.Gradients && in.round > s.round()+1 {
		s.early = append(s.early, in)
		return nil
	}
	if err := s.update(ctx, in); err != nil {
		return err
	}
	return s.takeEarly(ctx)
}

// takeEarly goes on with what came before all segments had completed the round before: so none of them is in a round whose successor another one has completed, and evaluations
// and reports are of one round. A pipeline waits for all segments anyway. Gradients are exchanged within rounds, as they become final, and wait for nothing.
func (s *shard) takeEarly(ctx context.Context) error {
	for round := s.round(); len(s.early) > 0; {
		at := slices.IndexFunc(s.early, func(in input) bool { return in.round <= round+1 })
		if at < 0 {
			return nil
		}
		in := s.early[at]
		s.early = slices.Delete(s.early, at, at+1)
		if err := s.update(ctx, in); err != nil {
			return err
		}
		round = s.round()
	}
	return nil
}

// round is the last one that all segments have completed.
func (s *shard) round() uint64 {
	round := uint64(math.MaxUint64)
	for _, of := range s.segments {
		round = min(round, of.center.Round())
	}
	return round
}

// update hands a message to the center of its segment.
func (s *shard) update(ctx context.Context, in input) error {
	if err := s.complete(ctx, in); err != nil {
		return err
	}
	s.mu.Lock()
	actions, err := in.segment.center.Update(in.pipeline, in.round)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.execute(ctx, in.segment, actions)
}

// await returns when the shard has done everything that it was told before.
func (s *shard) await(ctx context.Context) error {
	done := make(chan struct{})
	if err := send(ctx, s.inputs, input{sync: done}); err != nil {
		return err
	}
	_, err := receive(ctx, done)
	return err
}

// execute carries out actions in order. Those up to a release share one visit to the device, so that a pipeline waits for no more
// than its own pull.
func (s *shard) execute(ctx context.Context, of *segment, actions []elastic.Action) error {
	var todo, held []elastic.Action
	for _, a := range actions {
		switch a.Kind {
		case elastic.Release:
			if s.needs.Identity { // the center is the pipeline: nothing may change it before it is copied
				held = append(held, a)
				continue
			}
			started, err := s.flush(ctx, of, &todo)
			if err != nil {
				return err
			}
			s.released[a.Pipeline] <- release{of, a.Round, started}
		case elastic.Advance:
			if !s.needs.Gradients {
				if err := s.claimEvaluation(ctx, of, a.Round, &todo); err != nil {
					return err
				}
			}
			todo = append(todo, a)
		case elastic.Pull, elastic.Capture, elastic.Merge, elastic.Snapshot, elastic.Admit:
			todo = append(todo, a)
		}
	}
	started, err := s.flush(ctx, of, &todo)
	if err != nil {
		return err
	}
	for _, a := range held {
		s.released[a.Pipeline] <- release{of, a.Round, started}
	}
	for _, a := range actions {
		if a.Kind == elastic.Advance && !s.needs.Gradients && s.round() == a.Round { // of all segments
			s.report(a.Round)
			return s.enforce()
		}
	}
	return nil
}

// report starts the evaluation of a round that has completed, and tells of it.
func (s *shard) report(round uint64) {
	if s.eval != nil && s.config.Evaluation.Due(round) {
		s.eval.due <- round
	}
	if f := s.config.Events.OnRound; f != nil {
		f(s.index, round)
	}
}

// leave ends a step of a pipeline that applied exchanged gradients. The first one's weights are the center of the round.
func (s *shard) leave(ctx context.Context, pipeline int, round uint64) error {
	if err := s.snaps.enqueue(ctx); err != nil {
		return err
	}
	if pipeline != s.config.here()[0] {
		return nil
	}
	if s.eval != nil && s.config.Evaluation.Due(round) {
		if err := s.eval.claim(ctx); err != nil {
			return err
		}
		span := trace.Span{Kind: trace.Average, Pipeline: pipeline, Stage: s.index, Micro: -1, Step: round - 1}
		if err := s.executor.Do(ctx, span, func() error { s.eval.vector.Copy(s.weights()); return nil }); err != nil {
			return err
		}
	}
	s.report(round)
	return nil
}

// claimEvaluation waits, before the round of an evaluation, until the one before no longer reads its vector.
func (s *shard) claimEvaluation(ctx context.Context, of *segment, round uint64, todo *[]elastic.Action) error {
	if s.eval == nil || s.claimed == round || !s.config.Evaluation.Due(round) {
		return nil
	}
	s.claimed = round
	if _, err := s.flush(ctx, of, todo); err != nil {
		return err
	}
	return s.eval.claim(ctx)
}

// flush executes actions in one visit to the device, empties the list and returns when the device turned to it.
func (s *shard) flush(ctx context.Context, of *segment, todo *[]elastic.Action) (started time.Duration, err error) {
	actions := *todo
	if len(actions) == 0 {
		return trace.Now(), nil
	}
	*todo = nil
	span := trace.Span{
		Kind: trace.Average, Pipeline: actions[0].Pipeline, Stage: s.index, Micro: -1,
		Step: actions[0].Round*s.config.tau() - 1,
	}
	err = s.executor.doBetween(ctx, span, func() error {
		started = trace.Now()
		for _, a := range actions {
			s.apply(of, a)
		}
		return nil
	})
	if err == nil {
		err = s.peers.send(ctx)
	}
	if err != nil {
		return 0, err
	}
	return started, s.snaps.enqueue(ctx)
}

// apply executes one action on the device.
func (s *shard) apply(of *segment, a elastic.Action) {
	elsewhere := s.elsewhere(a.Pipeline)
	switch a.Kind {
	case elastic.Pull:
		if !of.needs.Identity && !elsewhere {
			s.pull(of, a.Pipeline, a.Round)
		}
	case elastic.Merge:
		of.addSquare(a)
		if !of.needs.Identity && of.here && of.needs.Visits(a.Pipeline, a.Round) {
			of.rules.Merge(of.vectors, of.message(a.Pipeline, a.Round), a.First)
			of.merged = a.Round
		}
	case elastic.Advance:
		s.advance(of, a)
		if !s.needs.Gradients && s.eval != nil && s.config.Evaluation.Due(a.Round) {
			of.cut(s.eval.vector).Copy(of.vectors.Center)
		}
	case elastic.Capture:
		switch {
		case elsewhere:
		case s.needs.Gradients:
			s.capturing[a.Pipeline] = a.Round // once the gradients that it waits for are applied
		default:
			s.captured(a.Pipeline, a.Round)
		}
	case elastic.Snapshot:
		s.snaps.captureCenter(a.Round, s.count(a), of)
	case elastic.Admit:
		if !elsewhere {
			of.weights[a.Pipeline].Copy(of.vectors.Center)
		}
	case elastic.Release: // nothing to compute
	}
}

// residual is what rounding has left out of a pipeline's messages of a segment, which is about to change; nil where nothing is kept. On the executor.
func (s *shard) residual(pipeline int, of *segment) []float32 {
	if s.residuals == nil {
		return nil
	}
	s.snaps.readRest(pipeline)
	return s.residuals[pipeline][of.From:of.To]
}

// elsewhere reports whether a member of a center is no pipeline that trains here.
func (s *shard) elsewhere(member int) bool { return member >= len(s.stages) || s.stages[member] == nil }

// count is how many pipelines' updates are in a round.
func (s *shard) count(a elastic.Action) int {
	if s.peers.exist() { // nobody joins or leaves, and a sum of another group is one member's
		return len(s.stages)
	}
	return a.Count
}

// advance moves the center of a segment by the sum of a round, which goes to the other groups first, or has come from the one that owns it.
func (s *shard) advance(of *segment, a elastic.Action) {
	if of.here && s.peers.exist() {
		s.peers.publish(of, a.Round)
	}
	if !of.needs.Exchanges(a.Round) || of.needs.Turns > 1 && of.here && of.merged != a.Round { // nothing has been merged
		return
	}
	s.snaps.readRest(of.keeper())
	if of.needs.Identity {
		return
	}
	s.settle(of, a)
	vectors := of.vectors
	if !of.here {
		vectors.Sum = of.message(of.sender(), a.Round)
	}
	of.rules.Advance(vectors, s.count(a))
}

// captured captures a pipeline that averages its weights once it has left a round in all segments.
func (s *shard) captured(pipeline int, round uint64) {
	if s.left[pipeline]++; s.left[pipeline] == len(s.segments) {
		s.left[pipeline] = 0
		s.snaps.capturePipeline(round, s, pipeline)
	}
}

// pull runs the pipeline's rule, on the gradient of its batch or on its weights.
func (s *shard) pull(of *segment, pipeline int, round uint64) {
	message := of.message(pipeline, round)
	switch {
	case of.needs.Idle(round): // nothing is applied, and nothing counts in the norm
		of.gradients[pipeline].Zero()
	case of.needs.Gradients:
		of.rules.Pull(of.gradients[pipeline], message, of.vectors.Center)
	case s.drift.inForce:
		of.weights[pipeline].Copy(of.vectors.Center)
	case of.needs.TimingOf(round) == elastic.After:
		of.rules.Pull(of.weights[pipeline], message, of.vectors.Center)
	default:
		s.measure(of, pipeline, round)
		if mixer, mixes := of.rules.(elastic.Mixer); mixes && of.needs.Mixes(round) {
			mixer.Mix(of.weights[pipeline], of.vectors.Center)
		}
		if of.needs.Visits(pipeline, round) {
			of.rules.Pull(of.weights[pipeline], message, of.vectors.Center)
		}
		if s.peers.takes(of) {
			s.peers.fill(pipeline, of, round, message, s.residual(pipeline, of))
		}
	}
}

// updated captures a pipeline that has applied what it pulled, where a snapshot of the round waits for it. On the executor.
func (s *shard) updated(pipeline int, round uint64) {
	if s.capturing[pipeline] == round {
		delete(s.capturing, pipeline)
		s.snaps.capturePipeline(round, s, pipeline)
	}
}

// weights are those of the model: the center's, or those of the first pipeline here where all have the same.
func (s *shard) weights() flat.Vector {
	if s.needs.Gradients {
		return s.lead().Parameters()
	}
	return s.vectors.Center
}

// delta is where the optimizer adds an update of a step, or nil when the method does not ask for it. first says that it is the
// step's first. On the executor.
func (s *shard) delta(pipeline int, step uint64, first bool) flat.Vector {
	if s.needs.Moved {
		s.moved.Zero()
		return s.moved
	}
	if !s.needs.Delta {
		return nil
	}
	m := s.message(pipeline, step/s.config.tau()+1)
	if first && step%s.config.tau() == 0 {
		m.Zero()
	}
	return m
}

// completeReads reads what snapshots still need of a pipeline's weights and state, before they change. On the executor.
func (s *shard) completeReads(pipeline int) {
	s.snaps.readRest(pipeline)
	if s.needs.Identity {
		s.snaps.readRest(s.segments[0].keeper())
	}
}

// captureAll snapshots the final round: no pipeline trains any more, and everything is as it left that round.
func (s *shard) captureAll(ctx context.Context, round uint64) error {
	span := trace.Span{Kind: trace.Commit, Stage: s.index, Micro: -1, Step: round * s.config.tau()}
	err := s.executor.Do(ctx, span, func() error {
		for _, p := range s.config.here() {
			s.snaps.capturePipeline(round, s, p)
		}
		for _, of := range s.segments {
			s.snaps.captureCenter(round, len(s.stages), of)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.snaps.enqueue(ctx)
}
