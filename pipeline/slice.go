package pipeline

import (
	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// part is a run of a stage's vectors, by pipeline; nil of one that trains elsewhere. Of weights and gradients only what the method averages is used.
type part struct {
	flat.Range
	weights, gradients []flat.Vector
	messages           [][]flat.Vector // Needs.Buffers each
}

// share gives the part its run of the shard's vectors. Where gradients are borrowed they are the messages.
func (of *part) share(s *shard, borrows bool) {
	of.messages = make([][]flat.Vector, len(s.stages))
	of.weights, of.gradients = make([]flat.Vector, len(s.stages)), make([]flat.Vector, len(s.stages))
	for p, st := range s.stages {
		if st == nil {
			continue
		}
		of.weights[p], of.gradients[p] = of.cut(st.Parameters()), of.cut(st.Gradients())
		if borrows {
			of.messages[p] = []flat.Vector{of.gradients[p]}
			continue
		}
		for _, v := range s.messages[p] {
			of.messages[p] = append(of.messages[p], of.cut(v))
		}
	}
}

// cut is the part of a vector of the stage.
func (of *part) cut(whole flat.Vector) flat.Vector { return whole.Slice(of.From, of.To) }

// message is the vector of a pipeline for a round; with one pipeline there is none.
func (of *part) message(pipeline int, round uint64) flat.Vector {
	buffers := of.messages[pipeline]
	return buffers[round%uint64(len(buffers))]
}

// slice is a run of a stage's vectors with rules of its own.
type slice struct {
	part
	rules  elastic.Method
	needs  elastic.Needs
	drains bool // elastic.Slice.Drains
}

// segment is a run of a slice that is summed by itself, in rounds of its own, for all groups by one of them.
type segment struct {
	part
	rules   elastic.Method
	needs   elastic.Needs
	index   int
	owner   int  // the group that sums the messages
	copied  bool // its messages and its sum are those of its original, and are not sent
	copies  []*segment
	here    bool // it is this one
	center  *elastic.Center
	vectors elastic.Shard
	merged  uint64        // the newest round in which a message was, where that is here; on the executor
	sums    []flat.Vector // of the owner, where that is another group: Needs.Buffers of them

	// Where drift is bounded, on the executor.
	squares [][2]float64 // by member and round: its squared distance from the center, of the owner's sum that of all; nil elsewhere
	squared float64      // of all pipelines in the round in progress
	length  float64      // the center's, squared, before the round
}

// sender stands for the owner among the members of the center of a segment that is summed elsewhere: its message is the sum of those of all pipelines.
func (of *segment) sender() int { return len(of.messages) + of.owner }

// message is that of a pipeline, or of the owner.
func (of *segment) message(member int, round uint64) flat.Vector {
	if member < len(of.messages) {
		return of.part.message(member, round)
	}
	return of.sums[round%uint64(len(of.sums))]
}

// share gives the segment its parts of the shard's vectors, and memory for what comes from other groups.
func (of *segment) share(s *shard) error {
	of.part.share(s, of.needs.Borrows())
	of.vectors = elastic.Shard{Center: of.cut(s.vectors.Center)}
	if s.vectors.Sum != nil {
		of.vectors.Sum = of.cut(s.vectors.Sum)
	}
	for _, v := range s.vectors.State {
		of.vectors.State = append(of.vectors.State, of.cut(v))
	}
	var err error
	if !of.here {
		of.sums, err = s.arrived.take(of.Range, s.needs.Buffers(), true)
		return err
	}
	first := true
	for p, st := range s.stages {
		if st == nil && !of.needs.Identity {
			if of.messages[p], err = s.arrived.take(of.Range, s.needs.Buffers(), first); err != nil {
				return err
			}
			first = false
		}
	}
	return nil
}

// keeper owns the segment's vectors of the center, as pipelines own theirs (snapshotter).
func (of *segment) keeper() int { return -1 - of.index }

// arrivals is memory for messages of other groups: vectors of the stage's length, of which segments take what they need.
type arrivals struct {
	make  func() (flat.Vector, error)
	lanes []flat.Vector // one for each buffer: every segment has one message here, at its own place
	rest  flat.Vector   // of the last vector made for further ones
}

// take gives a segment buffers: for its first sender those of the lanes.
func (a *arrivals) take(at flat.Range, buffers int, first bool) ([]flat.Vector, error) {
	var all []flat.Vector
	for i := range buffers {
		v, err := a.one(at, i, first)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func (a *arrivals) one(at flat.Range, buffer int, first bool) (v flat.Vector, err error) {
	if first {
		for len(a.lanes) <= buffer {
			if v, err = a.make(); err != nil {
				return nil, err
			}
			a.lanes = append(a.lanes, v)
		}
		return a.lanes[buffer].Slice(at.From, at.To), nil
	}
	length := at.To - at.From
	if a.rest == nil || a.rest.Len() < length {
		if a.rest, err = a.make(); err != nil {
			return nil, err
		}
	}
	v, a.rest = a.rest.Slice(0, length), a.rest.Slice(length, a.rest.Len())
	return v, nil
}

// newSlices cuts the vector of a stage, which goes on from a snapshot, unless it is nil, into slices by the rules of the method, and those into segments.
//
// A segment that another group owns has its sum in place of the messages of the pipelines elsewhere: from a member beyond all pipelines.
func newSlices(c *Config, l elastic.Layout, from *Snapshot) (all []*slice, segments []*segment) {
	cut := elastic.Cut(c.Method, l)
	if from != nil {
		cut = elastic.CutAfter(c.Method, l, from.Round, from.InFlight)
	}
	for _, s := range cut {
		all = append(all, &slice{part{Range: s.Range}, s.Rules, s.Needs, s.Drains})
	}
	var originals []int
	for i, s := range elastic.Segments(cut, l, len(c.groups()), c.SegmentElements) {
		by := all[s.Slice]
		of := &segment{part: part{Range: s.Range, messages: make([][]flat.Vector, c.Pipelines)}, rules: by.rules, needs: by.needs, index: i, owner: s.Owner, here: s.Owner == c.Group, copied: s.Original >= 0}
		members := everyPipeline(c.Pipelines)
		if !of.here {
			members = append([]int{of.sender()}, c.here()...)
		}
		of.center = elastic.NewCenter(of.needs, c.StartRound, members...)
		if of.needs.MaxDrift > 0 {
			of.squares = make([][2]float64, c.Pipelines+len(c.groups()))
		}
		segments = append(segments, of)
		originals = append(originals, s.Original)
	}
	for i, original := range originals {
		if original >= 0 {
			segments[original].copies = append(segments[original].copies, segments[i])
		}
	}
	return all, segments
}
