package reshard

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/stage"
)

// Part is what a worker needs of a round: a stage, and the pipelines that train there.
type Part struct {
	Split    [][2]int // of each stage of the new split, the first layer and the one after its last
	Stage    int
	From, To int // the first pipeline, and the one after the last
}

// Needs returns the shards of a round that a part is made of. Of a round whose manifest does not say which layers its shards have, the split must be the same,
// or every shard is needed.
func Needs(m *cluster.Manifest, p Part) []cluster.ShardRef {
	all := m.Holding(p.From, p.To)
	if slices.ContainsFunc(all, func(s cluster.ShardRef) bool { return s.Layers[1] == 0 }) {
		if len(p.Split) == len(all) {
			return all[p.Stage : p.Stage+1]
		}
		return all
	}
	var needed []cluster.ShardRef
	for _, s := range all {
		if s.Layers[0] < p.Split[p.Stage][1] && p.Split[p.Stage][0] < s.Layers[1] {
			needed = append(needed, s)
		}
	}
	return needed
}

// Source is a shard of a committed round, as its header says.
type Source struct {
	Header shard.Header
	Meta   export.ShardMeta
}

// ParseSource reads what a header says of the tensors of its shard.
func ParseSource(h *shard.Header) (Source, error) {
	s := Source{Header: *h}
	if err := json.Unmarshal(h.Meta, &s.Meta); err != nil {
		return s, fmt.Errorf("meta: %w", err)
	}
	return s, nil
}

// InFlight is of how many layers of the model, from the input, the round of some shards has a mean gradient that is not applied yet.
func InFlight(sources []Source) (layers int) {
	for _, s := range sources {
		layers = max(layers, s.Meta.InFlight)
	}
	return layers
}

// Target is a stage that is to be restored, for the pipelines that train there.
type Target struct {
	Layers    [2]int         // the first one, and the one after the last
	Tensors   []stage.Tensor // where they lie in each vector
	Elements  int            // of each vector
	State     int            // vectors of optimizer state of a pipeline
	Averaging int            // vectors that the averaging method keeps; those that the round does not have start at 0
	Alike     bool           // all pipelines have the same weights and optimizer state: one that the round does not have takes those of another
	Pipelines int            // of the job
	From, To  int            // the first pipeline that trains there, and the one after the last
	Keeps                    // of each pipeline
}

// Keeps is what averaging keeps of a pipeline beside its weights and the state of its optimizer.
type Keeps struct {
	Predicted bool // the weights that its next batch is computed with; where the round has none they are its weights
	Message   bool // its message of the round; where the round has none it is 0
	Residual  bool // what rounding has left out of its messages; where the round has none it is 0
}

// Piece is a run of elements that is copied from a vector of a source to a vector of the result. Vectors count in the order of their
// headers.
type Piece struct {
	Source, Vector, From int
	To, At               int
	Elements             int
}

// Assembly says how a stage is made. What no piece covers is 0.
type Assembly struct {
	Vectors []shard.Vector // of the result
	Count   int            // pipelines whose updates are in the round
	// Synchronous: the next round is, for the pipelines of one of the sources.
	Synchronous bool
	Pipelines   []int    // that go on; others start from the center
	Updates     []uint64 // that their optimizer states have seen
	Pieces      []Piece
}

// Assemble finds the pieces of a stage. Pipelines of the round go on with their weights and their optimizer state as long as there are as many
// in the target; others start from the center. A single pipeline is the center, so it takes the center's values. The sources must be
// of one round and have every tensor of the target. Those of each group of pipelines that is among them follow each other.
func Assemble(sources []Source, t Target) (*Assembly, error) {
	if err := agree(sources, t); err != nil {
		return nil, err
	}
	a := &Assembly{Count: sources[0].Meta.Count, Vectors: centerVectors(t.Averaging, t.Elements)}
	a.Synchronous = slices.ContainsFunc(sources, func(s Source) bool { return s.Meta.Synchronous })
	for from := 0; from < len(sources); {
		first := sources[from].Meta.First
		to := from + 1
		for to < len(sources) && sources[to].Meta.First == first {
			to++
		}
		if err := a.take(sources[from:to], from, t); err != nil {
			return nil, err
		}
		from = to
	}
	return a, nil
}

// take takes what the shards of one group have, which begin at a place among the sources: the center, if no group before had it, and pipelines.
func (a *Assembly) take(group []Source, at int, t Target) error {
	runs, err := find(group, t.Tensors)
	if err != nil {
		return err
	}
	add := func(vector, to int) {
		for _, r := range runs {
			r.Source, r.Vector, r.To = at+r.Source, vector, to
			a.Pieces = append(a.Pieces, r)
		}
	}
	if at == 0 {
		for j := range 1 + min(group[0].averaging(), t.Averaging) {
			add(j, j)
		}
	}
	meta := group[0].Meta
	for i, updates := range meta.Updates {
		p := meta.First + i
		switch {
		case p >= t.From && p < t.To:
		case t.Alike && at == 0 && i == 0 && !group[0].has(t.From): // the first one that trains there goes on as this one
			p = t.From
		default:
			continue
		}
		a.Pipelines, a.Updates = append(a.Pipelines, p), append(a.Updates, updates)
		first := len(a.Vectors)
		a.Vectors = append(a.Vectors, pipelineVectors(p, t.State, t.Elements, t.Keeps)...)
		for j, from := range group[0].takes(meta.First+i, p, t) { // the same vectors come first in every source
			if from >= 0 {
				add(from, first+j)
			}
		}
	}
	return nil
}

// takes are the vectors of a shard, those of pipeline p, that the vectors of a pipeline of the target are made of, in their order; -1: of none.
func (s *Source) takes(p, into int, t Target) []int {
	weights := s.vector(shard.ParametersVector(p))
	if t.Pipelines == 1 {
		weights = 0
	}
	all := []int{weights}
	for j := range t.State {
		all = append(all, s.vector(shard.StateVector(p, j)))
	}
	if t.Predicted {
		predicted := s.vector(shard.PredictedVector(p))
		if predicted < 0 {
			predicted = weights
		}
		all = append(all, predicted)
	}
	if t.Message {
		all = append(all, s.vector(shard.MessageVector(p)))
	}
	if t.Residual {
		residual := -1 // another pipeline has sent nothing yet
		if p == into {
			residual = s.vector(shard.ResidualVector(p))
		}
		all = append(all, residual)
	}
	return all
}

// vector is which one of the shard has a name; -1: none.
func (s *Source) vector(name string) int {
	return slices.IndexFunc(s.Header.Vectors, func(v shard.Vector) bool { return v.Name == name })
}

// AssembleFrozen finds the pieces of a stage's frozen parameters in files of them, which have a single vector.
func AssembleFrozen(sources []Source, tensors []stage.Tensor) ([]Piece, error) {
	for _, s := range sources {
		if len(s.Header.Vectors) != 1 || s.Header.Vectors[0].Name != shard.FrozenVector {
			return nil, fmt.Errorf("stage %d: its %d vectors are not frozen parameters alone", s.Header.Stage, len(s.Header.Vectors))
		}
	}
	return find(sources, tensors)
}

// has reports whether a pipeline is among those of the shard.
func (s *Source) has(pipeline int) bool {
	return pipeline >= s.Meta.First && pipeline < s.Meta.First+len(s.Meta.Updates)
}

// averaging is how many vectors of the averaging method the shard has. A single pipeline is averaged with none, so that a round of one has none where one of
// several does: those start at 0.
func (s *Source) averaging() int {
	n := 0
	for n+1 < len(s.Header.Vectors) && s.Header.Vectors[n+1].Name == shard.AveragingVector(n) {
		n++
	}
	return n
}

// expected are the vectors of a shard of an optimizer with so many vectors of state.
func (s *Source) expected(state int) []shard.Vector {
	first, elements := s.Meta.First, s.Header.Vectors[0].Elements
	all := centerVectors(s.averaging(), elements)
	for i := range s.Meta.Updates {
		all = append(all, pipelineVectors(first+i, state, elements, s.keeps(first))...)
	}
	return all
}

// keeps is what the shard has of a pipeline for averaging.
func (s *Source) keeps(p int) Keeps {
	has := func(name string) bool { return s.vector(name) >= 0 }
	return Keeps{has(shard.PredictedVector(p)), has(shard.MessageVector(p)), has(shard.ResidualVector(p))}
}

// centerVectors are those that come first: the center, and what the averaging method keeps.
func centerVectors(averaging, elements int) []shard.Vector {
	all := []shard.Vector{{Name: shard.CenterVector, Elements: elements}}
	for j := range averaging {
		all = append(all, shard.Vector{Name: shard.AveragingVector(j), Elements: elements})
	}
	return all
}

// pipelineVectors are those of one pipeline.
func pipelineVectors(p, state, elements int, keeps Keeps) []shard.Vector {
	all := []shard.Vector{{Name: shard.ParametersVector(p), Elements: elements}}
	for j := range state {
		all = append(all, shard.Vector{Name: shard.StateVector(p, j), Elements: elements})
	}
	if keeps.Predicted {
		all = append(all, shard.Vector{Name: shard.PredictedVector(p), Elements: elements})
	}
	if keeps.Message {
		all = append(all, shard.Vector{Name: shard.MessageVector(p), Elements: elements})
	}
	if keeps.Residual {
		all = append(all, shard.Vector{Name: shard.ResidualVector(p), Elements: elements})
	}
	return all
}

// agree checks that sources are parts of one round, of the target's optimizer.
func agree(sources []Source, t Target) error {
	if len(sources) == 0 {
		return errors.New("no shard has layers of the stage")
	}
	a := &sources[0]
	for i := range sources {
		b := &sources[i]
		if a.Header.Job != b.Header.Job || a.Header.Round != b.Header.Round || a.Header.Stages != b.Header.Stages ||
			a.Meta.First == b.Meta.First && !slices.Equal(a.Meta.Updates, b.Meta.Updates) {
			return fmt.Errorf("shards of job %s round %d stage %d of %d and of job %s round %d stage %d of %d are not of one round",
				a.Header.Job, a.Header.Round, a.Header.Stage, a.Header.Stages, b.Header.Job, b.Header.Round, b.Header.Stage, b.Header.Stages)
		}
		found := b.Header.Vectors
		if n := len(b.Meta.Updates); len(found) == 0 || !slices.Equal(found, b.expected(t.State)) {
			return fmt.Errorf("its %d vectors are not those of %d pipelines with %d parameters and %d vectors of optimizer state each: "+
				"it is of another model or optimizer", len(found), n, t.Elements, t.State)
		}
	}
	return nil
}

// find finds every tensor in the first vector of a source.
func find(sources []Source, tensors []stage.Tensor) ([]Piece, error) {
	type place struct{ source, tensor int }
	places := map[string]place{}
	for i := range sources {
		for j, t := range sources[i].Meta.Tensors {
			if _, twice := places[t.Name]; twice {
				return nil, fmt.Errorf("tensor %s lies in two places of the round", t.Name)
			}
			places[t.Name] = place{i, j}
		}
	}
	pieces := make([]Piece, 0, len(tensors))
	for _, t := range tensors {
		at, ok := places[t.Name]
		if !ok {
			return nil, fmt.Errorf("the round has no tensor %s %v: it is of another model", t.Name, t.Shape)
		}
		s := &sources[at.source]
		found, size := s.Meta.Tensors[at.tensor], t.Len()
		if !slices.Equal(found.Shape, t.Shape) || found.TiedTo != t.TiedTo {
			return nil, fmt.Errorf("tensor %s is %v tied to %q in the round, and %v tied to %q in the job: the round is of another model",
				t.Name, found.Shape, found.TiedTo, t.Shape, t.TiedTo)
		}
		if elements := s.Header.Vectors[0].Elements; found.Offset < 0 || found.Offset > elements-size {
			return nil, fmt.Errorf("tensor %s has %d elements from %d on, beyond the %d of its vector", t.Name, size, found.Offset, elements)
		}
		pieces = append(pieces, Piece{Source: at.source, From: found.Offset, At: t.Offset, Elements: size})
	}
	return pieces, nil
}
