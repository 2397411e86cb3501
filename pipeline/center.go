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

// shard is the center's part of one stage, in the memory of the stage's device: it hands every input to the elastic.Center and executes
// the actions that come back, in order, on the device's executor. One goroutine (run) does so for all pipelines; a pipeline
// waits only for its own release, and merging goes on while it trains.
type shard struct {
	index    int
	config   *Config
	executor *executor
	stages   []stage.Stage // by pipeline; nil of one that trains elsewhere
	peers    *peers        // the processes of other groups
	rules    elastic.Method
	needs    elastic.Needs
	vectors  elastic.Shard
	messages [][]flat.Vector // by pipeline, Timing.Buffers each
	snaps    *snapshotter
	eval     *evaluator // nil without evaluation

	capturing map[int]uint64 // pipeline -> the round that it is captured for once its update is applied; with exchanged gradients; on the executor

	inputs   chan input
	released []chan release // by pipeline; capacity 1

	mu     sync.Mutex // of center: Commit asks it from other goroutines
	center *elastic.Center
}

// input is what the shard's goroutine is told: a pipeline has ended a round or, with sync, the caller waits until all before it
// is done.
type input struct {
	pipeline int
	round    uint64
	capture  bool          // snapshot the final round, in which everything rests
	sync     chan struct{} // closed when all inputs before are done
}

// release lets a pipeline go on.
type release struct {
	round   uint64
	started time.Duration // when its averaging reached the device
}

// average ends a round of one pipeline and returns when it may begin the next one.
func (s *shard) average(ctx context.Context, id stageID, round uint64) error {
	span := id.span(trace.WaitAverage, round*s.config.tau()-1, -1)
	span.Start = trace.Now()
	if err := send(ctx, s.inputs, input{pipeline: id.pipeline, round: round}); err != nil {
		return err
	}
	r, err := receive(ctx, s.released[id.pipeline])
	if err != nil {
		return err
	}
	span.End = max(span.Start, r.started)
	s.config.Events.Trace.Emit(span)
	if r.round != round {
		return fmt.Errorf("released from round %d, waits for round %d", r.round, round)
	}
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
	actions, err := s.center.Update(in.pipeline, in.round)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.execute(ctx, actions)
}

// complete does what the message of a pipeline that trains here still needs: a gradient is copied from where the next batch adds up another, and one that
// nothing changes before it is merged goes to the other groups.
func (s *shard) complete(ctx context.Context, in input) error {
	of := s.stages[in.pipeline]
	if of == nil {
		return nil
	}
	copies := s.needs.Gradients && !s.needs.Borrows()
	sends := s.peers.exist() && (s.needs.Gradients || s.needs.TimingOf(in.round) == elastic.After)
	if !copies && !sends {
		return nil
	}
	span := trace.Span{Kind: trace.Average, Pipeline: in.pipeline, Stage: s.index, Micro: -1, Step: in.round*s.config.tau() - 1}
	err := s.executor.Do(ctx, span, func() error {
		message := s.message(in.pipeline, in.round)
		if copies {
			message.Copy(of.Gradients())
		}
		if sends {
			s.peers.fill(in.pipeline, in.round, message)
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
func (s *shard) execute(ctx context.Context, actions []elastic.Action) error {
	var todo, held []elastic.Action
	for _, a := range actions {
		switch a.Kind {
		case elastic.Release:
			if s.needs.Identity { // the center is the pipeline: nothing may change it before it is copied
				held = append(held, a)
				continue
			}
			started, err := s.flush(ctx, &todo)
			if err != nil {
				return err
			}
			s.released[a.Pipeline] <- release{a.Round, started}
		case elastic.Advance:
			if !s.needs.Gradients {
				if err := s.claimEvaluation(ctx, a.Round, &todo); err != nil {
					return err
				}
			}
			todo = append(todo, a)
		case elastic.Pull, elastic.Capture, elastic.Merge, elastic.Snapshot, elastic.Admit:
			todo = append(todo, a)
		}
	}
	started, err := s.flush(ctx, &todo)
	if err != nil {
		return err
	}
	for _, a := range held {
		s.released[a.Pipeline] <- release{a.Round, started}
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
func (s *shard) claimEvaluation(ctx context.Context, round uint64, todo *[]elastic.Action) error {
	if s.eval == nil || !s.config.Evaluation.Due(round) {
		return nil
	}
	if _, err := s.flush(ctx, todo); err != nil {
		return err
	}
	return s.eval.claim(ctx)
}

// flush executes actions in one visit to the device, empties the list and returns when the device turned to it.
func (s *shard) flush(ctx context.Context, todo *[]elastic.Action) (started time.Duration, err error) {
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
			s.apply(a)
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
func (s *shard) apply(a elastic.Action) {
	elsewhere := a.Pipeline < len(s.stages) && s.stages[a.Pipeline] == nil
	switch a.Kind {
	case elastic.Pull:
		if !s.needs.Identity && !elsewhere {
			s.pull(a.Pipeline, a.Round)
		}
	case elastic.Merge:
		if !s.needs.Identity {
			s.rules.Merge(s.vectors, s.message(a.Pipeline, a.Round), a.First)
		}
	case elastic.Advance:
		s.snaps.readRest(centerOwner)
		if !s.needs.Identity {
			s.rules.Advance(s.vectors, a.Count)
		}
		if !s.needs.Gradients && s.eval != nil && s.config.Evaluation.Due(a.Round) {
			s.eval.vector.Copy(s.vectors.Center)
		}
	case elastic.Capture:
		switch {
		case elsewhere:
		case s.needs.Gradients:
			s.capturing[a.Pipeline] = a.Round // once the gradient that it waits for is applied
		default:
			s.snaps.capturePipeline(a.Round, a.Pipeline, s.stages[a.Pipeline])
		}
	case elastic.Snapshot:
		s.snaps.captureCenter(a.Round, a.Count, s.vectors)
	case elastic.Admit:
		if !elsewhere {
			s.stages[a.Pipeline].Parameters().Copy(s.vectors.Center)
		}
	case elastic.Release: // nothing to compute
	}
}

// pull runs the pipeline's rule, on the gradient of its batch or on its weights.
func (s *shard) pull(pipeline int, round uint64) {
	of, message := s.stages[pipeline], s.message(pipeline, round)
	if s.needs.Gradients {
		s.rules.Pull(of.Gradients(), message, s.vectors.Center)
		return
	}
	s.rules.Pull(of.Parameters(), message, s.vectors.Center)
	if s.needs.TimingOf(round) == elastic.Before && s.peers.exist() {
		s.peers.fill(pipeline, round, message)
	}
}

// updated captures a pipeline that has applied what it pulled, where a snapshot of the round waits for it. On the executor.
func (s *shard) updated(pipeline int, round uint64) {
	if s.capturing[pipeline] == round {
		delete(s.capturing, pipeline)
		s.snaps.capturePipeline(round, pipeline, s.stages[pipeline])
	}
}

// weights are those of the model: the center's, or those of the first pipeline here where all have the same.
func (s *shard) weights() flat.Vector {
	if s.needs.Gradients {
		return s.lead().Parameters()
	}
	return s.vectors.Center
}

// message is the vector of a pipeline for a round; with one pipeline there is none.
func (s *shard) message(pipeline int, round uint64) flat.Vector {
	buffers := s.messages[pipeline]
	return buffers[round%uint64(len(buffers))]
}

// delta is where the optimizer adds an update of a step, or nil when the method does not ask for it. first says that it is the
// step's first. On the executor.
func (s *shard) delta(pipeline int, step uint64, first bool) flat.Vector {
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
		s.snaps.readRest(centerOwner)
	}
}

// captureAll snapshots the final round: no pipeline trains any more, and everything is as it left that round.
func (s *shard) captureAll(ctx context.Context, round uint64) error {
	span := trace.Span{Kind: trace.Commit, Stage: s.index, Micro: -1, Step: round * s.config.tau()}
	err := s.executor.Do(ctx, span, func() error {
		for _, p := range s.config.here() {
			s.snaps.capturePipeline(round, p, s.stages[p])
		}
		s.snaps.captureCenter(round, len(s.stages), s.vectors)
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

// allocateMessages makes those of all pipelines; a gradient that may be the message itself needs none.
func (s *shard) allocateMessages() error {
	s.messages = make([][]flat.Vector, len(s.stages))
	for p, of := range s.stages {
		switch {
		case s.needs.Identity:
			continue
		case of != nil && s.needs.Borrows():
			s.messages[p] = []flat.Vector{of.Gradients()}
			continue
		}
		s.messages[p] = make([]flat.Vector, s.needs.Timing.Buffers())
		for i := range s.messages[p] {
			if err := s.newVectors(&s.messages[p][i]); err != nil {
				return err
			}
		}
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
