package reshard_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/reshard"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/stage"
)

const layers, stateVectors = 7, 2

// width is how many elements the tensor of a layer has.
func width(layer int) int { return 3 + 5*layer%11 }

// part is a stage of a split in memory: its header, and its vectors.
type part struct {
	reshard.Source
	vectors [][]float32
}

// laid is a stage with some layers; a tensor takes a multiple of 16 elements.
func laid(from, to int) (tensors []stage.Tensor, length int) {
	for l := from; l < to; l++ {
		t := stage.Tensor{Name: fmt.Sprint("layer", l), Shape: []int{width(l)}, Offset: length}
		if l == layers-1 {
			t.TiedTo = "layer0"
		}
		tensors = append(tensors, t)
		length += (width(l) + 15) / 16 * 16
	}
	return tensors, length
}

// value is that of an element of a tensor in a vector, whatever the split.
func value(vector, layer, i int) float32 { return float32(10000*vector + 100*layer + i + 1) }

// round is a committed round, of a split and a number of pipelines in groups.
func round(t *testing.T, cuts []int, pipelines, groups int) (parts []part, m *cluster.Manifest) {
	t.Helper()
	m = &cluster.Manifest{Round: 9, Stages: len(cuts) - 1, Cursors: make([]shard.Cursor, pipelines)}
	each := pipelines / groups
	for n := range groups * m.Stages {
		k, first := n%m.Stages, n/m.Stages*each
		tensors, length := laid(cuts[k], cuts[k+1])
		meta := export.ShardMeta{Layers: [2]int{cuts[k], cuts[k+1]}, Tensors: tensors, Count: pipelines, First: first}
		for i := range each {
			meta.Updates = append(meta.Updates, uint64(first+i))
		}
		text, err := json.Marshal(meta)
		if err != nil {
			t.Fatal(err)
		}
		p := part{}
		p.Header = shard.Header{Round: 9, Stage: k, Stages: len(cuts) - 1, Meta: text, Vectors: []shard.Vector{{Name: shard.CenterVector, Elements: length}}}
		var numbers []int // of the vectors among those of a round of one group
		for i := first; i < first+each; i++ {
			for j := range 1 + stateVectors {
				numbers = append(numbers, 1+i*(1+stateVectors)+j)
			}
			p.Header.Vectors = append(p.Header.Vectors, shard.Vector{Name: shard.ParametersVector(i), Elements: length})
			for j := range stateVectors {
				p.Header.Vectors = append(p.Header.Vectors, shard.Vector{Name: shard.StateVector(i, j), Elements: length})
			}
		}
		for v := range p.Header.Vectors {
			memory := make([]float32, length)
			for l := cuts[k]; l < cuts[k+1]; l++ {
				for i := range width(l) {
					number := 0
					if v > 0 {
						number = numbers[v-1]
					}
					memory[tensors[l-cuts[k]].Offset+i] = value(number, l, i)
				}
			}
			p.vectors = append(p.vectors, memory)
		}
		if p.Source, err = reshard.ParseSource(&p.Header); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
		m.Shards = append(m.Shards, cluster.ShardRef{Stage: k, Digest: shard.Digest(strconv.Itoa(n)), Layers: meta.Layers})
	}
	return parts, m
}

// splitAt draws where a model is cut.
func splitAt(r *rand.Rand) []int {
	cuts := []int{0}
	for l := 1; l < layers; l++ {
		if r.IntN(2) == 0 {
			cuts = append(cuts, l)
		}
	}
	return append(cuts, layers)
}

// TestEverySplitIsMadeOfEveryOther: each element gets where it belongs, and nothing else is written.
func TestEverySplitIsMadeOfEveryOther(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		was, now := splitAt(r), splitAt(r)
		groups := 1 + r.IntN(3)
		had, has := groups*(1+r.IntN(2)), 1+r.IntN(5)
		from := r.IntN(has)
		to := from + 1 + r.IntN(has-from)
		parts, m := round(t, was, had, groups)
		split := make([][2]int, len(now)-1)
		for k := range split {
			split[k] = [2]int{now[k], now[k+1]}
		}
		for k := range split {
			var sources []reshard.Source
			var of []part
			for _, ref := range reshard.Needs(m, reshard.Part{Split: split, Stage: k, From: from, To: to}) {
				n, err := strconv.Atoi(string(ref.Digest))
				if err != nil {
					t.Fatal(err)
				}
				of = append(of, parts[n])
				sources = append(sources, parts[n].Source)
			}
			if each := had / groups; from/each == (to-1)/each && slices.Equal(was, now) && len(of) != 1 {
				t.Fatalf("%d shards are read where one has all that is needed", len(of))
			}
			tensors, length := laid(now[k], now[k+1])
			a, err := reshard.Assemble(sources, reshard.Target{Layers: split[k], Tensors: tensors, Elements: length, State: stateVectors, Pipelines: has, From: from, To: to})
			if err != nil {
				t.Fatalf("%v to %v: %v", was, now, err)
			}
			var goOn []int
			for p := from; p < min(to, had); p++ {
				goOn = append(goOn, p)
			}
			if !slices.Equal(a.Pipelines, goOn) || len(a.Updates) != len(goOn) || len(a.Vectors) != 1+len(goOn)*(1+stateVectors) {
				t.Fatalf("pipelines %d to %d of %d, and there were %d: %v go on, %d vectors", from, to, has, had, a.Pipelines, len(a.Vectors))
			}
			for i, p := range goOn {
				if a.Updates[i] != uint64(p) {
					t.Fatalf("pipeline %d has seen %d updates", p, a.Updates[i])
				}
			}
			checkMade(t, a, of, tensors, now[k], has)
		}
	}
}

// checkMade copies the pieces, and holds the result against what a stage has that was never cut otherwise.
func checkMade(t *testing.T, a *reshard.Assembly, from []part, tensors []stage.Tensor, first, pipelines int) {
	t.Helper()
	made := make([][]float32, len(a.Vectors))
	for v := range made {
		made[v] = make([]float32, a.Vectors[v].Elements)
	}
	for _, p := range a.Pieces {
		copy(made[p.To][p.At:p.At+p.Elements], from[p.Source].vectors[p.Vector][p.From:p.From+p.Elements])
	}
	for v := range made {
		want, expected := v, make([]float32, a.Vectors[v].Elements)
		if v > 0 {
			i, j := (v-1)/(1+stateVectors), (v-1)%(1+stateVectors)
			if want = 1 + a.Pipelines[i]*(1+stateVectors) + j; pipelines == 1 && j == 0 {
				want = 0 // a single pipeline is the center
			}
		}
		for j, tensor := range tensors {
			for i := range tensor.Len() {
				expected[tensor.Offset+i] = value(want, first+j, i)
			}
		}
		if !slices.Equal(made[v], expected) {
			t.Fatalf("vector %s is\n%v, expected\n%v", a.Vectors[v].Name, made[v], expected)
		}
	}
}

// TestWhatTheMethodKeepsGoesWithTheCenter, and what the round does not have starts at 0; other methods do not take it.
func TestWhatTheMethodKeepsGoesWithTheCenter(t *testing.T) {
	for _, c := range []struct{ had, wants int }{{0, 1}, {1, 1}, {1, 0}, {2, 2}} {
		parts, _ := round(t, []int{0, layers}, 2, 1)
		source := parts[0].Source
		for j := range c.had {
			v := shard.Vector{Name: shard.AveragingVector(j), Elements: source.Header.Vectors[0].Elements}
			source.Header.Vectors = slices.Insert(source.Header.Vectors, 1+j, v)
		}
		tensors, length := laid(0, layers)
		a, err := reshard.Assemble([]reshard.Source{source}, reshard.Target{
			Layers: [2]int{0, layers}, Tensors: tensors, Elements: length, State: stateVectors, Averaging: c.wants, Pipelines: 2, To: 2,
		})
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		for _, p := range a.Pieces {
			from := source.Header.Vectors[p.Vector].Name
			if to := a.Vectors[p.To].Name; from != to {
				t.Errorf("%+v: %s is made of %s", c, to, from)
			}
		}
		made := map[int]bool{}
		for _, p := range a.Pieces {
			made[p.To] = true
		}
		if want := 1 + min(c.had, c.wants) + 2*(1+stateVectors); len(made) != want || len(a.Vectors) != 1+c.wants+2*(1+stateVectors) {
			t.Errorf("%+v: %d of %d vectors are made, expected %d", c, len(made), len(a.Vectors), want)
		}
	}
}

// TestARoundIsFollowedByASynchronousOneWhereAnyOfItsShardsIs: whatever the split.
func TestARoundIsFollowedByASynchronousOneWhereAnyOfItsShardsIs(t *testing.T) {
	for which := -1; which < 2; which++ {
		parts, _ := round(t, []int{0, 1, layers}, 2, 1)
		sources := []reshard.Source{parts[0].Source, parts[1].Source}
		if which >= 0 {
			sources[which].Meta.Synchronous = true
		}
		tensors, length := laid(0, layers)
		a, err := reshard.Assemble(sources, reshard.Target{Layers: [2]int{0, layers}, Tensors: tensors, Elements: length, State: stateVectors, Pipelines: 2, To: 2})
		if err != nil {
			t.Fatal(err)
		}
		if a.Synchronous != (which >= 0) {
			t.Errorf("shard %d is: the assembly says %v", which, a.Synchronous)
		}
	}
}

// TestWhatAveragingKeepsGoesWithItsPipeline: where the round has none, passes read the pipeline's weights, and the message and the residual are 0; other methods do not take them.
func TestWhatAveragingKeepsGoesWithItsPipeline(t *testing.T) {
	tensors, length := laid(0, layers)
	for had := range 8 {
		for wants := range 8 {
			parts, _ := round(t, []int{0, layers}, 2, 1)
			source := parts[0].Source
			elements := source.Header.Vectors[0].Elements
			for p := 1; p >= 0; p-- {
				at := 1 + (p+1)*(1+stateVectors)
				for i, name := range []string{shard.ResidualVector(p), shard.MessageVector(p), shard.PredictedVector(p)} {
					if had&(1<<i) != 0 {
						source.Header.Vectors = slices.Insert(source.Header.Vectors, at, shard.Vector{Name: name, Elements: elements})
					}
				}
			}
			a, err := reshard.Assemble([]reshard.Source{source}, reshard.Target{
				Layers: [2]int{0, layers}, Tensors: tensors, Elements: length, State: stateVectors, Keeps: reshard.Keeps{Residual: wants&1 != 0, Message: wants&2 != 0, Predicted: wants&4 != 0}, Pipelines: 2, To: 2,
			})
			if err != nil {
				t.Fatalf("%d to %d: %v", had, wants, err)
			}
			made := map[string]string{}
			for _, p := range a.Pieces {
				made[a.Vectors[p.To].Name] = source.Header.Vectors[p.Vector].Name
			}
			for _, v := range a.Vectors {
				want := v.Name
				switch v.Name {
				case shard.PredictedVector(0), shard.PredictedVector(1):
					if had&4 == 0 {
						want = strings.Replace(v.Name, "predicted", "parameters", 1)
					}
				case shard.ResidualVector(0), shard.ResidualVector(1):
					if had&1 == 0 {
						want = ""
					}
				case shard.MessageVector(0), shard.MessageVector(1):
					if had&2 == 0 {
						want = ""
					}
				}
				if made[v.Name] != want {
					t.Errorf("%d to %d: %s is made of %q, expected %q", had, wants, v.Name, made[v.Name], want)
				}
			}
			if want := 1 + 2*(1+stateVectors+wants&1+wants>>1&1+wants>>2); len(a.Vectors) != want {
				t.Errorf("%d to %d: %d vectors, expected %d", had, wants, len(a.Vectors), want)
			}
		}
	}
}

// TestAPipelineThatTheRoundDoesNotHaveGoesOnAsAnother, where all are alike.
func TestAPipelineThatTheRoundDoesNotHaveGoesOnAsAnother(t *testing.T) {
	tensors, length := laid(0, layers)
	for _, alike := range []bool{false, true} {
		parts, m := round(t, []int{0, layers}, 2, 2)
		split := [][2]int{{0, layers}}
		refs := reshard.Needs(m, reshard.Part{Split: split, From: 2, To: 3})
		if len(refs) != 1 || refs[0].Digest != "0" {
			t.Fatalf("it needs %+v", refs)
		}
		a, err := reshard.Assemble([]reshard.Source{parts[0].Source}, reshard.Target{
			Layers: split[0], Tensors: tensors, Elements: length, State: stateVectors, Alike: alike, Pipelines: 3, From: 2, To: 3,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Equal(a.Pipelines, []int{2}); got != alike {
			t.Errorf("alike %v: %v go on", alike, a.Pipelines)
		}
		if alike && (a.Vectors[1].Name != shard.ParametersVector(2) || len(a.Vectors) != 2+stateVectors || a.Updates[0] != 0) {
			t.Errorf("it is %v with %v updates", a.Vectors, a.Updates)
		}
	}
}

func TestShardsThatDoNotMakeAStageAreRefused(t *testing.T) {
	parts, m := round(t, []int{0, 3, layers}, 2, 1)
	tensors, length := laid(2, 5)
	target := reshard.Target{Layers: [2]int{2, 5}, Tensors: tensors, Elements: length, State: stateVectors, Pipelines: 2, To: 2}
	good := func() []reshard.Source { return []reshard.Source{parts[0].Source, parts[1].Source} }
	for want, change := range map[string]func(all []reshard.Source) ([]reshard.Source, reshard.Target){
		"no shard has layers": func([]reshard.Source) ([]reshard.Source, reshard.Target) { return nil, target },
		"has no tensor layer3": func(all []reshard.Source) ([]reshard.Source, reshard.Target) {
			return all[:1], target
		},
		"not of one round": func(all []reshard.Source) ([]reshard.Source, reshard.Target) {
			all[1].Header.Round = 8
			return all, target
		},
		"two places": func(all []reshard.Source) ([]reshard.Source, reshard.Target) {
			return append(all, all[0]), target
		},
		"0 vectors of optimizer state": func(all []reshard.Source) ([]reshard.Source, reshard.Target) {
			other := target
			other.State = 0
			return all, other
		},
		"beyond the": func(all []reshard.Source) ([]reshard.Source, reshard.Target) {
			all[1].Meta.Tensors = slices.Clone(all[1].Meta.Tensors)
			all[1].Meta.Tensors[0].Offset = 1 << 40
			return all, target
		},
		"[99] tied to": func(all []reshard.Source) ([]reshard.Source, reshard.Target) {
			all[0].Meta.Tensors = slices.Clone(all[0].Meta.Tensors)
			all[0].Meta.Tensors[2].Shape = []int{99}
			return all, target
		},
	} {
		sources, to := change(good())
		if _, err := reshard.Assemble(sources, to); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected %q", err, want)
		}
	}
	m.Shards[0].Layers = [2]int{} // an older manifest
	if got := reshard.Needs(m, reshard.Part{Split: [][2]int{{0, 4}, {4, layers}}, To: 2}); len(got) != 1 || got[0].Digest != "0" {
		t.Errorf("without layers, a split of as many stages needs %v", got)
	}
	if got := reshard.Needs(m, reshard.Part{Split: [][2]int{{0, layers}}, To: 2}); len(got) != 2 {
		t.Errorf("without layers, another split needs %v", got)
	}
}
