package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// peers are the processes with the same stage of other groups of pipelines. Every one keeps the center of the stage: the messages of the pipelines here go to
// all of them, and theirs come here.
type peers struct {
	links   map[int][]wire.End // by pipeline that trains here: one to each other group
	remotes []*remote          // the pipelines that train elsewhere, ascending
	id      func(pipeline int) stageID
	gate    *gate
	bytes   int      // of the largest message
	filled  []filled // on the executor, and by send between its visits
}

// finalBytes are those behind the elements of a message: the final round, as the sender knows it (Group.Commit).
const finalBytes = 8

// filled is a message that is to be sent.
type filled struct {
	to    wire.End
	frame wire.Frame
}

// remote stands for a pipeline that trains elsewhere: it hands the messages that come to the center here, as a runner does.
type remote struct {
	stageID
	shard *shard
	gate  *gate
	from  wire.End
	freed []uint64 // by slice: the newest round that the center has released the pipeline from; run's

	mu        sync.Mutex
	delivered []uint64      // by slice: the newest round handed to the center
	changed   chan struct{} // closed and replaced with each
}

func newPeers(g *Group, st *localStage) *peers {
	c := &g.config
	p := &peers{
		links: map[int][]wire.End{}, id: func(pipeline int) stageID { return g.stageID(st, pipeline) }, gate: g.gate,
	}
	delivered := make([]uint64, len(st.shard.slices))
	for i, of := range st.shard.slices {
		p.bytes, delivered[i] = max(p.bytes, messageBytes(of)), c.StartRound
	}
	for pipeline, s := range st.replicas {
		if s == nil {
			p.remotes = append(p.remotes, &remote{
				stageID: g.stageID(st, pipeline), shard: st.shard, gate: g.gate, freed: slices.Clone(delivered), delivered: slices.Clone(delivered), changed: make(chan struct{}),
			})
		}
	}
	return p
}

// exist reports whether there is any other group.
func (p *peers) exist() bool { return len(p.remotes) > 0 }

// messageBytes are those of a message of a slice: its elements, and the sender's final round.
func messageBytes(of *slice) int { return 4*(of.To-of.From) + finalBytes }

// header is that of a message: a slice takes the place of a micro-batch.
func (s stageID) messageHeader(slice int, round uint64) wire.Header {
	return s.header(wire.Message, s.index, s.index, round, slice)
}

// fill copies the message of a pipeline here, of a slice, for every other group. On the executor.
func (p *peers) fill(pipeline, slice int, round uint64, message flat.Vector) {
	bytes := 4*message.Len() + finalBytes
	for i, to := range p.links[pipeline] {
		f := to.NewFrame(p.id(pipeline).messageHeader(slice, round), bytes)
		if i == 0 {
			at := bytes - finalBytes
			message.Read(floats(f.Payload[:at]), 0)
			binary.LittleEndian.PutUint64(f.Payload[at:], p.gate.last())
		} else {
			copy(f.Payload, p.filled[len(p.filled)-1].frame.Payload)
		}
		p.filled = append(p.filled, filled{to, f})
	}
}

// send sends what was filled.
func (p *peers) send(ctx context.Context) error {
	all := p.filled
	p.filled = nil
	for i, f := range all {
		if err := f.to.Send(ctx, f.frame); err != nil {
			for _, rest := range all[i+1:] {
				rest.frame.Release()
			}
			return err
		}
	}
	return nil
}

// await returns when the messages of all rounds up to one have been handed to the center.
func (p *peers) await(ctx context.Context, round uint64) error {
	for _, q := range p.remotes {
		for {
			q.mu.Lock()
			delivered, changed := slices.Min(q.delivered), q.changed
			q.mu.Unlock()
			if delivered >= round {
				break
			}
			if _, err := receive(ctx, changed); err != nil {
				return err
			}
		}
	}
	return nil
}

// run hands messages over until ctx ends, or the link does.
func (r *remote) run(ctx context.Context) error {
	for {
		err := r.deliver(ctx)
		over := errors.Is(err, wire.ErrClosed) && slices.Min(r.delivered) >= r.gate.last() // the other process was through first
		if over || ctx.Err() != nil {
			return nil //nolint:nilerr // it has ended as it should
		}
		if err != nil {
			round := slices.Min(r.delivered) + 1
			return &Error{Pipeline: r.pipeline, Stage: r.index, Step: round*r.shard.config.tau() - 1, Op: fmt.Sprintf("message of round %d", round), Err: err}
		}
	}
}

// deliver hands the next message, which is of any slice, to its center, which may write over the one before: it has released the pipeline.
func (r *remote) deliver(ctx context.Context) error {
	f, err := r.from.Receive(ctx)
	if err != nil {
		return err
	}
	defer f.Release()
	of := r.shard.slices[min(max(f.Micro, 0), len(r.shard.slices)-1)]
	round := r.delivered[of.index] + 1
	if err := verify(f, r.messageHeader(of.index, round), messageBytes(of)); err != nil {
		return err
	}
	at := messageBytes(of) - finalBytes
	if final := binary.LittleEndian.Uint64(f.Payload[at:]); !r.gate.lower(final) {
		return fmt.Errorf("training ends at round %d there, and a pipeline here has begun a later one", final)
	}
	if err := r.awaitRelease(ctx, of, round-1); err != nil {
		return err
	}
	err = r.shard.executor.Do(ctx, r.span(trace.Average, round*r.shard.config.tau()-1, -1), func() error {
		of.message(r.pipeline, round).Write(floats(f.Payload[:at]), 0)
		return nil
	})
	if err == nil {
		err = send(ctx, r.shard.inputs, input{slice: of, pipeline: r.pipeline, round: round})
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delivered[of.index] = round
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// awaitRelease returns when the center of a slice has released the pipeline from a round.
func (r *remote) awaitRelease(ctx context.Context, of *slice, round uint64) error {
	for r.freed[of.index] < round {
		released, err := receive(ctx, r.shard.released[r.pipeline])
		if err != nil {
			return err
		}
		r.freed[released.slice.index] = released.round
	}
	return nil
}

// connectPeers links every stage here with the same stage of the other groups.
func (w *wiring) connectPeers(ctx context.Context, group *errgroup.Group) {
	for k, st := range w.local {
		if !st.peers.exist() {
			continue
		}
		spec := wire.Spec{
			Generation: w.config.Generation, Depth: (w.config.Method.Needs().Timing.Buffers() + 1) * len(st.shard.slices), MaxBytes: st.peers.bytes, Trace: w.config.Events.Trace, Memory: w.memory(k),
		}
		link := func(p int) wire.Link { return wire.Link{Purpose: wire.Averaged, Pipeline: p, Lower: k, Upper: k} }
		for _, q := range st.peers.remotes {
			group.Go(func() error { return w.reach(ctx, link(q.pipeline), true, spec, func(e wire.End) { q.from = e }) })
		}
		w.publish(ctx, group, st, link, spec)
	}
}

// publish makes the links that messages of the pipelines here go by.
func (w *wiring) publish(ctx context.Context, group *errgroup.Group, st *localStage, link func(int) wire.Link, spec wire.Spec) {
	var mu sync.Mutex
	for _, p := range w.config.here() {
		for other := range w.config.groups() {
			if other == w.config.Group {
				continue
			}
			group.Go(func() error {
				e, err := w.config.Publish(ctx, link(p), other, spec)
				if err != nil {
					return fmt.Errorf("connect the %v, to group %d: %w", link(p), other, err)
				}
				mu.Lock()
				st.peers.links[p] = append(st.peers.links[p], e)
				mu.Unlock()
				return w.keep(e)
			})
		}
	}
}
