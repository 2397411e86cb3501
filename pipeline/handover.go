package pipeline

import (
	"context"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
)

// finalTeller is a stage that says within the last backward of a batch which gradients are final (stage.Computed.OnFinal).
type finalTeller interface {
	OnFinal(f func(t stage.Tensor, ready device.Event))
	Tensors() []stage.Tensor
}

// handover hands a pipeline's gradient over while its backward goes on: each segment as soon as all tensors in it are final. Between layers the executor also does what
// other segments wait for. So the exchange with other groups goes on beside the backward, from the output to the input.
//
// It is the executor's alone within a batch, and the runner's at its end.
type handover struct {
	shard    *shard
	pipeline int
	over     map[string][]*segment // by tensor: those that have elements of it
	tensors  []int                 // by segment: those that have elements in it
	missing  []int                 // of them, not final yet in this batch
	handed   []bool                // by segment, in this batch
	step     func() uint64         // of the batch in progress
	whole    func(uint64) bool     // the gradients of a step are read at its end, as they are before any exchange
	batches  bool                  // the first batch has begun, or one after it
}

// newHandover has a stage tell what is final. Nil where gradients stay in this process, or where a device works through several queues: what it does for one pipeline
// says nothing of when it reads the gradient of another.
func newHandover(s *shard, pipeline int, of stage.Stage, step func() uint64, whole func(uint64) bool) *handover {
	teller, tells := of.(finalTeller)
	if !tells || !s.needs.Gradients || !s.peers.exist() || len(s.executor.queues) > 1 {
		return nil
	}
	n := len(s.segments)
	h := &handover{
		shard: s, pipeline: pipeline, over: map[string][]*segment{}, tensors: make([]int, n), missing: make([]int, n), handed: make([]bool, n), step: step, whole: whole,
	}
	for _, t := range teller.Tensors() {
		for _, of := range s.segments {
			if of.From < t.Offset+t.Len() && t.Offset < of.To {
				h.over[t.Name] = append(h.over[t.Name], of)
				h.tensors[of.index]++
			}
		}
	}
	teller.OnFinal(h.final)
	return h
}

// begin prepares for the next batch.
func (h *handover) begin() {
	if h == nil {
		return
	}
	h.batches = true
	copy(h.missing, h.tensors)
	clear(h.handed)
}

// final hands over the segments that a tensor was the last one of. On the executor, within a backward.
func (h *handover) final(t stage.Tensor, _ device.Event) {
	if !h.batches || h.whole(h.step()) {
		return
	}
	for _, of := range h.over[t.Name] {
		if h.missing[of.index]--; h.missing[of.index] == 0 {
			h.handed[of.index] = true
			h.shard.handOver(of, h.pipeline, h.step()+1)
		}
	}
	h.shard.executor.between()
}

// has reports whether a segment was handed over in this batch.
func (h *handover) has(of *segment) bool { return h != nil && h.handed[of.index] }

// complete does what the message of a pipeline that trains here still needs: a gradient is copied from where the next batch adds up another, and one that
// nothing changes before it is merged goes to the other groups.
func (s *shard) complete(ctx context.Context, in input) error {
	if s.elsewhere(in.pipeline) {
		return nil
	}
	if in.ready {
		return s.peers.send(ctx)
	}
	of := in.segment
	if copies, sends, measures := s.completes(of, in.round); !copies && !sends && !measures {
		return nil
	}
	span := trace.Span{Kind: trace.Average, Pipeline: in.pipeline, Stage: s.index, Micro: -1, Step: in.round*s.config.tau() - 1}
	err := s.executor.doBetween(ctx, span, func() error {
		s.completeNow(of, in.pipeline, in.round)
		return nil
	})
	if err != nil {
		return err
	}
	return s.peers.send(ctx)
}

// completes says what a message of a segment still needs once its pipeline has handed it over: to be copied from the gradient, to be rounded and sent to the owner of the segment, or its
// pipeline's distance from the center.
func (s *shard) completes(of *segment, round uint64) (copies, sends, measures bool) {
	copies = of.needs.Gradients && !of.needs.Borrows()
	waits := !of.needs.Gradients && s.timing(of, round) == elastic.After
	sends = s.peers.takes(of) && (of.needs.Gradients || waits)
	return copies, sends, waits && s.drift.Bounded()
}

// completeNow does it. On the executor.
func (s *shard) completeNow(of *segment, pipeline int, round uint64) {
	copies, sends, measures := s.completes(of, round)
	message := of.message(pipeline, round)
	if copies {
		message.Copy(of.gradients[pipeline])
	}
	if measures {
		s.measure(of, pipeline, round)
	}
	if sends {
		s.peers.fill(pipeline, of, round, message, s.residual(pipeline, of))
	}
}

// handOver hands a segment of a pipeline's gradient over as soon as it is final. On the executor, on which others wait: it never blocks.
func (s *shard) handOver(of *segment, pipeline int, round uint64) {
	s.completeNow(of, pipeline, round)
	select {
	case s.inputs <- input{segment: of, pipeline: pipeline, round: round, ready: true}:
	default:
		panic("pipeline: a member has handed a segment over twice in a round") // there is room for all to do so once
	}
}
