package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// shard is the center's part of one stage, in the memory of the stage's device, slice by slice: it hands every input to the slice's elastic.Center and executes
// the actions that come back, in order, on the device's executor. One goroutine (run) does so for all pipelines; a pipeline
// waits only for its own releases, and merging goes on while it trains.
type shard struct {
	index    int
	config   *Config
	executor *executor
	stages   []stage.Stage   // by pipeline; nil of one that trains elsewhere
	peers    *peers          // the processes of other groups
	needs    elastic.Needs   // of the method; those of a slice may ask for less
	vectors  elastic.Shard   // of the whole stage; those of slices are parts of them, as of messages
	messages [][]flat.Vector // by pipeline, Timing.Buffers each; none where the gradient is the message
	slices   []*slice        // several only where gradients are exchanged
	moved    flat.Vector     // the update of a step, with Needs.Moved
	snaps    *snapshotter
	eval     *evaluator // nil without evaluation

	capturing map[int]uint64 // pipeline -> the round that it is captured for once its update is applied; with exchanged gradients; on the executor

	inputs   chan input
	released []chan release // by pipeline; capacity for one of each slice

	mu sync.Mutex // of the slices' centers: Commit asks them from other goroutines
}

// input is what the shard's goroutine is told: a pipeline has ended a round of a slice or, with sync, the caller waits until all before it
// is done.
type input struct {
	slice    *slice
	pipeline int
	round    uint64
	capture  bool          // snapshot the final round, in which everything rests
	sync     chan struct{} // closed when all inputs before are done
}

// release lets a pipeline go on, as far as a slice is concerned.
type release struct {
	slice   *slice
	round   uint64
	started time.Duration // when its averaging reached the device
}

// average ends a round of one pipeline and returns when it may begin the next one.
func (s *shard) average(ctx context.Context, id stageID, round uint64) error {
	span := id.span(trace.WaitAverage, round*s.config.tau()-1, -1)
	span.Start = trace.Now()
	for _, part := range s.slices {
		if err := send(ctx, s.inputs, input{slice: part, pipeline: id.pipeline, round: round}); err != nil {
			return err
		}
	}
	span.End = span.Start
	for range s.slices {
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
	if err := s.complete(ctx, in); err != nil {
		return err
	}
	s.mu.Lock()
	actions, err := in.slice.center.Update(in.pipeline, in.round)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.execute(ctx, in.slice, actions)
}

// complete does what the message of a pipeline that trains here still needs: a gradient is copied from where the next batch adds up another, and one that
// nothing changes before it is merged goes to the other groups.
func (s *shard) complete(ctx context.Context, in input) error {
	of := s.stages[in.pipeline]
	if of == nil {
		return nil
	}
	needs := in.slice.needs
	copies := needs.Gradients && !needs.Borrows()
	sends := s.peers.exist() && (needs.Gradients || needs.TimingOf(in.round) == elastic.After)
	if !copies && !sends {
		return nil
	}
	span := trace.Span{Kind: trace.Average, Pipeline: in.pipeline, Stage: s.index, Micro: -1, Step: in.round*s.config.tau() - 1}
	err := s.executor.Do(ctx, span, func() error {
		message := in.slice.message(in.pipeline, in.round)
		if copies {
			message.Copy(in.slice.gradients[in.pipeline])
		}
		if sends {
			s.peers.fill(in.pipeline, in.slice.index, in.round, message)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.peers.send(ctx)
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
func (s *shard) execute(ctx context.Context, of *slice, actions []elastic.Action) error {
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
		if a.Kind == elastic.Advance && !s.needs.Gradients {
			s.report(a.Round)
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
func (s *shard) claimEvaluation(ctx context.Context, of *slice, round uint64, todo *[]elastic.Action) error {
	if s.eval == nil || !s.config.Evaluation.Due(round) {
		return nil
	}
	if _, err := s.flush(ctx, of, todo); err != nil {
		return err
	}
	return s.eval.claim(ctx)
}

// flush executes actions in one visit to the device, empties the list and returns when the device turned to it.
func (s *shard) flush(ctx context.Context, of *slice, todo *[]elastic.Action) (started time.Duration, err error) {
	actions := *todo
	if len(actions) == 0 {
		return trace.Now(), nil
	}
	*todo = nil
	span := trace.Span{
		Kind: trace.Average, Pipeline: actions[0].Pipeline, Stage: s.index, Micro: -1,
		Step: actions[0].Round*s.config.tau() - 1,
	}
	err = s.executor.Do(ctx, span, func() error {
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
func (s *shard) apply(of *slice, a elastic.Action) {
	elsewhere := a.Pipeline < len(s.stages) && s.stages[a.Pipeline] == nil
	switch a.Kind {
	case elastic.Pull:
		if !of.needs.Identity && !elsewhere {
			s.pull(of, a.Pipeline, a.Round)
		}
	case elastic.Merge:
		if !of.needs.Identity {
			of.rules.Merge(of.vectors, of.message(a.Pipeline, a.Round), a.First)
		}
	case elastic.Advance:
		s.snaps.readRest(of.owner())
		if !of.needs.Identity {
			of.rules.Advance(of.vectors, a.Count)
		}
		if !s.needs.Gradients && s.eval != nil && s.config.Evaluation.Due(a.Round) {
			s.eval.vector.Copy(s.vectors.Center)
		}
	case elastic.Capture:
		switch {
		case elsewhere:
		case s.needs.Gradients:
			s.capturing[a.Pipeline] = a.Round // once the gradients that it waits for are applied
		default:
			s.snaps.capturePipeline(a.Round, s, a.Pipeline)
		}
	case elastic.Snapshot:
		s.snaps.captureCenter(a.Round, a.Count, of)
	case elastic.Admit:
		if !elsewhere {
			of.weights[a.Pipeline].Copy(of.vectors.Center)
		}
	case elastic.Release: // nothing to compute
	}
}

// pull runs the pipeline's rule, on the gradient of its batch or on its weights.
func (s *shard) pull(of *slice, pipeline int, round uint64) {
	message := of.message(pipeline, round)
	switch {
	case of.needs.Idle(round): // nothing is applied, and nothing counts in the norm
		of.gradients[pipeline].Zero()
	case of.needs.Gradients:
		of.rules.Pull(of.gradients[pipeline], message, of.vectors.Center)
	default:
		of.rules.Pull(of.weights[pipeline], message, of.vectors.Center)
		if of.needs.TimingOf(round) == elastic.Before && s.peers.exist() {
			s.peers.fill(pipeline, of.index, round, message)
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
	m := s.slices[0].message(pipeline, step/s.config.tau()+1)
	if first && step%s.config.tau() == 0 {
		m.Zero()
	}
	return m
}

// completeReads reads what snapshots still need of a pipeline's weights and state, before they change. On the executor.
func (s *shard) completeReads(pipeline int) {
	s.snaps.readRest(pipeline)
	if s.needs.Identity {
		s.snaps.readRest(s.slices[0].owner())
	}
}

// captureAll snapshots the final round: no pipeline trains any more, and everything is as it left that round.
func (s *shard) captureAll(ctx context.Context, round uint64) error {
	span := trace.Span{Kind: trace.Commit, Stage: s.index, Micro: -1, Step: round * s.config.tau()}
	err := s.executor.Do(ctx, span, func() error {
		for _, p := range s.config.here() {
			s.snaps.capturePipeline(round, s, p)
		}
		for _, of := range s.slices {
			s.snaps.captureCenter(round, len(s.stages), of)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.snaps.enqueue(ctx)
}

// allocate makes the shard's vectors on the stages' device and sets the center. On the executor.
func (s *shard) allocate() error {
	lead := s.lead()
	if s.needs.Identity {
		s.vectors.Center = lead.Parameters()
	} else {
		s.vectors.State = make([]flat.Vector, s.needs.State)
		all := []*flat.Vector{&s.vectors.Center, &s.vectors.Sum}
		for i := range s.vectors.State {
			all = append(all, &s.vectors.State[i])
		}
		if s.needs.Moved {
			all = append(all, &s.moved)
		}
		if err := s.newVectors(all...); err != nil {
			return err
		}
		if !s.needs.Gradients {
			s.vectors.Center.Copy(lead.Parameters())
		}
	}
	if err := s.allocateMessages(); err != nil {
		return err
	}
	if s.eval != nil {
		return s.newVectors(&s.eval.vector)
	}
	return nil
}

// allocateMessages makes those of all pipelines, and the slices of everything; a gradient that may be the message itself needs none.
func (s *shard) allocateMessages() error {
	s.messages = make([][]flat.Vector, len(s.stages))
	for p, of := range s.stages {
		if s.needs.Identity || of != nil && s.needs.Borrows() {
			continue
		}
		s.messages[p] = make([]flat.Vector, s.needs.Timing.Buffers())
		for i := range s.messages[p] {
			if err := s.newVectors(&s.messages[p][i]); err != nil {
				return err
			}
		}
	}
	for _, of := range s.slices {
		of.share(s)
	}
	return nil
}

// lead is the stage of the first pipeline that trains here.
func (s *shard) lead() stage.Stage { return s.stages[s.config.here()[0]] }

// newVectors allocates vectors on the stages' device.
func (s *shard) newVectors(all ...*flat.Vector) error {
	for _, v := range all {
		made, err := s.lead().NewVector()
		if err != nil {
			return fmt.Errorf("allocate a vector of %d parameters for averaging: %w", s.lead().Shape().Parameters, err)
		}
		*v = made
	}
	return nil
}
