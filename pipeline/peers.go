package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// peers are the processes with the same stage of other groups of pipelines. Every one keeps the center of the stage. The messages of the pipelines here go to the groups that own
// the segments, and those of the segments that are owned here come here; then the sums go to all.
type peers struct {
	links   map[int]map[int]wire.End // by pipeline that trains here and other group
	lead    int                      // the pipeline here by whose links the sums go
	remotes []*remote                // the pipelines that train elsewhere, ascending
	id      func(pipeline int) stageID
	gate    *gate
	bytes   int // of the largest message
	rounds  elastic.Precision

	// On the executor.
	elements []float32
	unsent   []byte

	mu     sync.Mutex
	filled []filled // in the order in which they are to be sent
}

// tail is what is behind the elements of a message.
type tail struct {
	final  uint64  // round, as the sender knows it (Group.Commit)
	square float64 // segment.squares of the sender; on the wire only where drift is bounded
}

// The bytes of a tail.
const (
	finalBytes  = 8
	squareBytes = 8
)

func (t tail) write(to []byte) {
	binary.LittleEndian.PutUint64(to, t.final)
	if len(to) > finalBytes {
		binary.LittleEndian.PutUint64(to[finalBytes:], math.Float64bits(t.square))
	}
}

func readTail(from []byte) (t tail) {
	t.final = binary.LittleEndian.Uint64(from)
	if len(from) > finalBytes {
		t.square = math.Float64frombits(binary.LittleEndian.Uint64(from[finalBytes:]))
	}
	return t
}

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
	as    []int    // by segment: the member of its center whose message comes by this link; -1: none does
	freed []uint64 // by segment: the newest round that the center has released the member from; run's

	mu        sync.Mutex
	delivered []uint64      // by segment that comes by this link: the newest round handed to the center
	changed   chan struct{} // closed and replaced with each
}

func newPeers(g *Group, st *localStage) *peers {
	c := &g.config
	p := &peers{
		links: map[int]map[int]wire.End{}, lead: c.here()[0], rounds: c.Method.Config().Precision, id: func(pipeline int) stageID { return g.stageID(st, pipeline) }, gate: g.gate,
	}
	for _, pipeline := range c.here() {
		p.links[pipeline] = map[int]wire.End{}
	}
	for _, of := range st.shard.segments {
		p.bytes = max(p.bytes, p.messageBytes(of), p.sumBytes(of))
	}
	for group, pipelines := range c.groups() {
		for i, pipeline := range pipelines {
			if group != c.Group {
				p.remotes = append(p.remotes, newRemote(g, st, pipeline, group, i == 0))
			}
		}
	}
	slices.SortFunc(p.remotes, func(a, b *remote) int { return a.pipeline - b.pipeline })
	return p
}

// newRemote stands for a pipeline of another group, of which the first one's link brings the group's sums as well.
func newRemote(g *Group, st *localStage, pipeline, group int, lead bool) *remote {
	r := &remote{stageID: g.stageID(st, pipeline), shard: st.shard, gate: g.gate, changed: make(chan struct{})}
	for _, of := range st.shard.segments {
		as, delivered := -1, uint64(math.MaxUint64)
		switch {
		case of.here:
			as = pipeline
		case of.owner == group && lead:
			as = of.sender()
		}
		if as >= 0 {
			delivered = g.config.StartRound
		}
		r.as, r.freed, r.delivered = append(r.as, as), append(r.freed, delivered), append(r.delivered, delivered)
	}
	return r
}

// exist reports whether there is any other group.
func (p *peers) exist() bool { return len(p.remotes) > 0 }

// takes reports whether the messages of a segment are rounded or sent.
func (p *peers) takes(of *segment) bool {
	return p.exist() && (!of.here || p.rounds != elastic.Float32)
}

// tailBytes are those behind the elements of a message of a segment.
func (of *segment) tailBytes() int {
	if of.squares == nil {
		return finalBytes
	}
	return finalBytes + squareBytes
}

// messageBytes are those of a message of a segment.
func (p *peers) messageBytes(of *segment) int { return p.rounds.Bytes(of.To-of.From) + of.tailBytes() }

// sumBytes are those of a sum.
func (p *peers) sumBytes(of *segment) int {
	return p.rounds.Sums().Bytes(of.To-of.From) + of.tailBytes()
}

// bytesIn are those of a message or a sum in a round: where the segment, or the pipeline, does not exchange in it those of the tail.
func bytesIn(of *segment, exchanges bool, exchanged int) int {
	if exchanges {
		return exchanged
	}
	return of.tailBytes()
}

// messageHeader is that of a message: a segment takes the place of a micro-batch.
func (s stageID) messageHeader(segment int, round uint64) wire.Header {
	return s.header(wire.Message, s.index, s.index, round, segment)
}

// fill rounds the message of a pipeline here for a segment, and copies it for the group that owns that, unless it is this one. On the executor.
func (p *peers) fill(pipeline int, of *segment, round uint64, message flat.Vector, residual []float32) {
	exchanges := of.needs.Visits(pipeline, round)
	if of.here || of.copied {
		if exchanges {
			p.round(p.rounds, of, message, residual)
		}
		return
	}
	to := p.links[pipeline][of.owner]
	f := to.NewFrame(p.id(pipeline).messageHeader(of.index, round), bytesIn(of, exchanges, p.messageBytes(of)))
	if exchanges {
		p.pack(p.rounds, f.Payload, of, message, residual)
	}
	square := 0.0
	if of.squares != nil {
		square = of.squares[pipeline][round%2]
	}
	p.end(f.Payload, of, square)
	p.add(filled{to, f})
}

// publish rounds the sum of a segment that is owned here, and copies it for every other group. On the executor.
func (p *peers) publish(of *segment, round uint64) {
	var first []byte
	exchanges := of.needs.Exchanges(round)
	if of.copied {
		if exchanges {
			p.round(p.rounds.Sums(), of, of.vectors.Sum, nil)
		}
		return
	}
	for _, group := range slices.Sorted(maps.Keys(p.links[p.lead])) {
		to := p.links[p.lead][group]
		f := to.NewFrame(p.id(p.lead).messageHeader(of.index, round), bytesIn(of, exchanges, p.sumBytes(of)))
		switch {
		case first != nil:
			copy(f.Payload, first)
		default:
			first = f.Payload
			if exchanges {
				p.pack(p.rounds.Sums(), first, of, of.vectors.Sum, nil)
			}
			p.end(first, of, of.squared)
		}
		p.add(filled{to, f})
	}
}

// end writes the tail of a message.
func (p *peers) end(payload []byte, of *segment, square float64) {
	tail{p.gate.last(), square}.write(payload[len(payload)-of.tailBytes():])
}

// pack writes a vector of a segment, which it rounds, before the tail.
func (p *peers) pack(by elastic.Precision, payload []byte, of *segment, v flat.Vector, residual []float32) {
	at := len(payload) - of.tailBytes()
	if by == elastic.Float32 {
		v.Read(floats(payload[:at]), 0)
		return
	}
	elements := p.room(of)
	v.Read(elements, 0)
	by.Round(payload[:at], elements, residual)
	v.Write(elements, 0)
}

// unpack reads a vector of a segment.
func (p *peers) unpack(by elastic.Precision, v flat.Vector, of *segment, elements []byte) {
	if by == elastic.Float32 {
		v.Write(floats(elements), 0)
		return
	}
	to := p.room(of)
	by.Decode(to, elements)
	v.Write(to, 0)
}

// round rounds a message, or a sum, that is not sent.
func (p *peers) round(by elastic.Precision, of *segment, message flat.Vector, residual []float32) {
	if by == elastic.Float32 {
		return
	}
	n := by.Bytes(of.To-of.From) + of.tailBytes()
	if len(p.unsent) < n {
		p.unsent = make([]byte, n)
	}
	p.pack(by, p.unsent[:n], of, message, residual)
}

// room is host memory for the elements of a segment, until it is asked for again. On the executor.
func (p *peers) room(of *segment) []float32 {
	n := of.To - of.From
	if len(p.elements) < n {
		p.elements = make([]float32, n)
	}
	return p.elements[:n]
}

func (p *peers) add(f filled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filled = append(p.filled, f)
}

// send sends what was filled.
func (p *peers) send(ctx context.Context) error {
	p.mu.Lock()
	all := p.filled
	p.filled = nil
	p.mu.Unlock()
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

// deliver hands the next message, which is of any segment that is no copy, to its center and to those of its copies, which may write over the one before: they have released the member.
func (r *remote) deliver(ctx context.Context) error {
	f, err := r.from.Receive(ctx)
	if err != nil {
		return err
	}
	defer f.Release()
	of := r.shard.segments[min(max(f.Micro, 0), len(r.shard.segments)-1)]
	as := r.as[of.index]
	if as < 0 || of.copied {
		return fmt.Errorf("received %v: segment %d comes by another link, or with its original: the groups do not cut the stage alike", f.Header, of.index)
	}
	round := r.delivered[of.index] + 1
	by, bytes, exchanges := r.shard.peers.rounds, r.shard.peers.messageBytes(of), of.needs.Visits(r.pipeline, round)
	if as == of.sender() {
		by, bytes, exchanges = by.Sums(), r.shard.peers.sumBytes(of), of.needs.Exchanges(round)
	}
	bytes = bytesIn(of, exchanges, bytes)
	if err := verify(f, r.messageHeader(of.index, round), bytes); err != nil {
		return err
	}
	at := bytes - of.tailBytes()
	end := readTail(f.Payload[at:])
	if !r.gate.lower(end.final) {
		return fmt.Errorf("training ends at round %d there, and a pipeline here has begun a later one", end.final)
	}
	all := append([]*segment{of}, of.copies...)
	for _, one := range all {
		if err := r.awaitRelease(ctx, one, as, round-1); err != nil {
			return err
		}
	}
	err = r.shard.executor.doBetween(ctx, r.span(trace.Average, round*r.shard.config.tau()-1, -1), func() error {
		for _, one := range all {
			if exchanges {
				r.shard.peers.unpack(by, one.message(as, round), one, f.Payload[:at])
			}
		}
		if of.squares != nil {
			of.squares[as][round%2] = end.square
		}
		return nil
	})
	for _, one := range all {
		if err == nil {
			err = send(ctx, r.shard.inputs, input{segment: one, pipeline: as, round: round})
		}
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range all {
		r.delivered[one.index] = round
	}
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// awaitRelease returns when the center of a segment has released a member from a round.
func (r *remote) awaitRelease(ctx context.Context, of *segment, as int, round uint64) error {
	for r.freed[of.index] < round {
		released, err := receive(ctx, r.shard.released[as])
		if err != nil {
			return err
		}
		r.freed[released.segment.index] = released.round
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
			Generation: w.config.Generation, Depth: (w.config.Method.Needs().Buffers() + 1) * len(st.shard.segments), MaxBytes: st.peers.bytes, Trace: w.config.Events.Trace, Memory: w.memory(k),
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
				st.peers.links[p][other] = e
				mu.Unlock()
				return w.keep(e)
			})
		}
	}
}
