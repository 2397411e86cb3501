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

// Needs returns the shards of a round that stage of a new split needs: of each stage the first layer and the one after its last. Of a round
// whose manifest does not say which layers its shards have, the split must be the same, or every shard is needed.
func Needs(m *cluster.Manifest, split [][2]int, stage int) []cluster.ShardRef {
	if slices.ContainsFunc(m.Shards, func(s cluster.ShardRef) bool { return s.Layers[1] == 0 }) {
		if len(split) == len(m.Shards) {
			return m.Shards[stage : stage+1]
		}
		return m.Shards
	}
	var needed []cluster.ShardRef
	for _, s := range m.Shards {
		if s.Layers[0] < split[stage][1] && split[stage][0] < s.Layers[1] {
			needed = append(needed, s)
		}
	}
	return needed
}

// Files are the digests of what several stages of a new split need, each once: of shards, and of files of frozen parameters.
func Files(m *cluster.Manifest, split [][2]int, stages ...int) (all []shard.Digest) {
	for _, stage := range stages {
		for _, s := range Needs(m, split, stage) {
			for _, d := range []shard.Digest{s.Digest, s.Frozen} {
				if d != "" && !slices.Contains(all, d) {
					all = append(all, d)
				}
			}
		}
	}
	return all
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

// Target is a stage that is to be restored.
type Target struct {
	Layers    [2]int         // the first one, and the one after the last
	Tensors   []stage.Tensor // where they lie in each vector
	Elements  int            // of each vector
	State     int            // vectors of optimizer state of a pipeline
	Pipelines int
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
	Updates []uint64       // that the optimizer states of the pipelines that go on have seen; other pipelines start from the center
	Pieces  []Piece
}

// Assemble finds the pieces of a stage. Pipelines of the round go on with their weights and their optimizer state as long as there are as many
// in the target; others start from the center. A single pipeline is the center, so it takes the center's values. The sources must be
// of one round and have every tensor of the target.
func Assemble(sources []Source, t Target) (*Assembly, error) {
	if err := agree(sources, t); err != nil {
		return nil, err
	}
	first := sources[0].Meta
	a := &Assembly{Count: first.Count, Updates: first.Updates[:min(len(first.Updates), t.Pipelines)]}
	a.Vectors = vectors(len(a.Updates), t.State, t.Elements)
	from := make([]int, len(a.Vectors)) // the same vectors come first in every source
	for i := range from {
		from[i] = i
	}
	if t.Pipelines == 1 && len(first.Updates) > 0 {
		from[1] = 0
	}
	runs, err := find(sources, t.Tensors)
	if err != nil {
		return nil, err
	}
	for to, vector := range from {
		for _, r := range runs {
			r.Vector, r.To = vector, to
			a.Pieces = append(a.Pieces, r)
		}
	}
	return a, nil
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

// vectors are those of a shard.
func vectors(pipelines, state, elements int) []shard.Vector {
	all := []shard.Vector{{Name: shard.CenterVector, Elements: elements}}
	for p := range pipelines {
		all = append(all, shard.Vector{Name: shard.ParametersVector(p), Elements: elements})
		for j := range state {
			all = append(all, shard.Vector{Name: shard.StateVector(p, j), Elements: elements})
		}
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
			!slices.Equal(a.Meta.Updates, b.Meta.Updates) {
			return fmt.Errorf("shards of job %s round %d stage %d of %d and of job %s round %d stage %d of %d are not of one round",
				a.Header.Job, a.Header.Round, a.Header.Stage, a.Header.Stages, b.Header.Job, b.Header.Round, b.Header.Stage, b.Header.Stages)
		}
		found := b.Header.Vectors
		if n := len(b.Meta.Updates); len(found) == 0 || !slices.Equal(found, vectors(n, t.State, found[0].Elements)) {
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
