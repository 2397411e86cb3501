package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	bytes   int      // of a message: the vector, and the sender's final round
	filled  []filled // on the executor, and by send between its visits
}

// finalBytes are those behind the vector of a message: the final round, as the sender knows it (Group.Commit).
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
	start uint64 // the round that training starts from

	mu        sync.Mutex
	delivered uint64        // the newest round handed to the center
	changed   chan struct{} // closed and replaced with each
}

func newPeers(g *Group, st *localStage) *peers {
	c := &g.config
	p := &peers{
		links: map[int][]wire.End{}, id: func(pipeline int) stageID { return g.stageID(st, pipeline) }, gate: g.gate,
		bytes: 4*st.lead().Shape().Parameters + finalBytes,
	}
	for pipeline, s := range st.replicas {
		if s == nil {
			p.remotes = append(p.remotes, &remote{
				stageID: g.stageID(st, pipeline), shard: st.shard, gate: g.gate, start: c.StartRound, delivered: c.StartRound, changed: make(chan struct{}),
			})
		}
	}
	return p
}

// exist reports whether there is any other group.
func (p *peers) exist() bool { return len(p.remotes) > 0 }

// header is that of a message.
func (p *peers) header(pipeline int, round uint64) wire.Header {
	id := p.id(pipeline)
	return id.header(wire.Message, id.index, id.index, round, -1)
}

// fill copies the message of a pipeline here for every other group. On the executor.
func (p *peers) fill(pipeline int, round uint64, message flat.Vector) {
	for i, to := range p.links[pipeline] {
		f := to.NewFrame(p.header(pipeline, round), p.bytes)
		if i == 0 {
			at := p.bytes - finalBytes
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
			delivered, changed := q.delivered, q.changed
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
	for round := r.start + 1; ; round++ {
		err := r.deliver(ctx, round)
		over := errors.Is(err, wire.ErrClosed) && round > r.gate.last() // the other process was through first
		if over || ctx.Err() != nil {
			return nil //nolint:nilerr // it has ended as it should
		}
		if err != nil {
			return &Error{Pipeline: r.pipeline, Stage: r.index, Step: round*r.shard.config.tau() - 1, Op: fmt.Sprintf("message of round %d", round), Err: err}
		}
	}
}

// deliver hands the message of a round to the center, which may write over the one before: it has released the pipeline.
func (r *remote) deliver(ctx context.Context, round uint64) error {
	f, err := r.from.Receive(ctx)
	if err != nil {
		return err
	}
	defer f.Release()
	at := 4 * r.shard.vectors.Center.Len()
	if err := verify(f, r.header(wire.Message, r.index, r.index, round, -1), at+finalBytes); err != nil {
		return err
	}
	if final := binary.LittleEndian.Uint64(f.Payload[at:]); !r.gate.lower(final) {
		return fmt.Errorf("training ends at round %d there, and a pipeline here has begun a later one", final)
	}
	if round > r.start+1 {
		if _, err := receive(ctx, r.shard.released[r.pipeline]); err != nil {
			return err
		}
	}
	err = r.shard.executor.Do(ctx, r.span(trace.Average, round*r.shard.config.tau()-1, -1), func() error {
		r.shard.message(r.pipeline, round).Write(floats(f.Payload[:at]), 0)
		return nil
	})
	if err == nil {
		err = send(ctx, r.shard.inputs, input{pipeline: r.pipeline, round: round})
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delivered = round
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// connectPeers links every stage here with the same stage of the other groups.
func (w *wiring) connectPeers(ctx context.Context, group *errgroup.Group) {
	for k, st := range w.local {
		if !st.peers.exist() {
			continue
		}
		spec := wire.Spec{
			Generation: w.config.Generation, Depth: w.config.Method.Needs().Timing.Buffers() + 1, MaxBytes: st.peers.bytes, Trace: w.config.Events.Trace, Memory: w.memory(k),
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
