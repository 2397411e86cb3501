package pipeline

import (
	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// slice is a run of a stage's vectors that is averaged by itself. Its vectors are parts of the stage's.
type slice struct {
	flat.Range
	index    int
	rules    elastic.Method
	needs    elastic.Needs
	center   *elastic.Center
	vectors  elastic.Shard
	messages [][]flat.Vector // by pipeline, Timing.Buffers each
	// By pipeline; nil of one that trains elsewhere. Of weights and gradients only what the method averages is used.
	weights, gradients []flat.Vector
}

// newSlices cuts the vector of a stage, which goes on from a snapshot, unless it is nil.
func newSlices(c *Config, l elastic.Layout, from *Snapshot) []*slice {
	var all []*slice
	for i, cut := range elastic.Cut(c.Method, l) {
		needs := cut.Rules.Needs()
		if from != nil && from.Begins {
			needs = needs.Begin(from.Round)
		}
		all = append(all, &slice{
			Range: cut.Range, index: i, rules: cut.Rules, needs: needs,
			center: elastic.NewCenter(needs, c.StartRound, everyPipeline(c.Pipelines)...),
		})
	}
	return all
}

// share gives the slice its parts of the shard's vectors.
func (of *slice) share(s *shard) {
	of.vectors = elastic.Shard{Center: of.cut(s.vectors.Center)}
	if s.vectors.Sum != nil {
		of.vectors.Sum = of.cut(s.vectors.Sum)
	}
	for _, v := range s.vectors.State {
		of.vectors.State = append(of.vectors.State, of.cut(v))
	}
	of.messages = make([][]flat.Vector, len(s.stages))
	of.weights, of.gradients = make([]flat.Vector, len(s.stages)), make([]flat.Vector, len(s.stages))
	for p, st := range s.stages {
		if st != nil {
			of.weights[p], of.gradients[p] = of.cut(st.Parameters()), of.cut(st.Gradients())
		}
		if st != nil && of.needs.Borrows() {
			of.messages[p] = []flat.Vector{of.gradients[p]}
			continue
		}
		for _, v := range s.messages[p] {
			of.messages[p] = append(of.messages[p], of.cut(v))
		}
	}
}

// cut is the slice of a vector of the stage.
func (of *slice) cut(whole flat.Vector) flat.Vector { return whole.Slice(of.From, of.To) }

// message is the vector of a pipeline for a round; with one pipeline there is none.
func (of *slice) message(pipeline int, round uint64) flat.Vector {
	buffers := of.messages[pipeline]
	return buffers[round%uint64(len(buffers))]
}

// owner owns the slice's vectors of the center, as pipelines own theirs (snapshotter).
func (of *slice) owner() int { return -1 - of.index }
