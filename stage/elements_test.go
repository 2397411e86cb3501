package stage_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// parts cut a stage's vector into as many ranges of whole tensors as it has tensors, or two.
func parts(s *stage.Computed, each bool) (all []flat.Range) {
	tensors := s.Tensors()
	for i, t := range tensors {
		if each || i == 0 || i == len(tensors)/2 {
			if len(all) > 0 {
				all[len(all)-1].To = t.Offset
			}
			all = append(all, flat.Range{From: t.Offset, To: s.Shape().Parameters})
		}
	}
	return all
}

// TestAStepOfPartsHasTheBitsOfOne, by every optimizer, in any order of the parts.
func TestAStepOfPartsHasTheBitsOfOne(t *testing.T) {
	for name, o := range map[string]stage.Optimizer{
		"adamw": {Name: "adamw", WeightDecay: 0.1}, "adam": {Name: "adam"}, "sgd": {Name: "sgd", Momentum: 0.9, Nesterov: true}, "asgd": {Name: "asgd", T0: 1},
	} {
		for _, each := range []bool{false, true} {
			whole, cut := single(t, func(c *stage.Config) { c.Optimizer = o }), single(t, func(c *stage.Config) { c.Optimizer = o })
			deltas := [2]flat.Vector{}
			for i, s := range []*stage.Computed{whole, cut} {
				v, err := s.NewVector()
				if err != nil {
					t.Fatal(err)
				}
				deltas[i] = v
			}
			for k := range uint64(4) {
				h := stage.Hyper{Step: k, LearningRate: 1e-2, GradScale: 0.5}
				for i, s := range []*stage.Computed{whole, cut} {
					backward(t, s, k)
					elements := []flat.Range{{}}
					if i == 1 {
						elements = parts(s, each)
						slices.Reverse(elements)
					}
					for _, h.Elements = range elements {
						if err := s.Step(h, deltas[i]); err != nil {
							t.Fatal(err)
						}
					}
					s.ZeroGradients()
				}
			}
			for i, v := range append([]flat.Vector{whole.Parameters(), deltas[0]}, whole.State()...) {
				other := append([]flat.Vector{cut.Parameters(), deltas[1]}, cut.State()...)[i]
				if !slices.Equal(read(v), read(other)) {
					t.Errorf("%s, each tensor %v: vector %d of the parameters, the update and the state differs", name, each, i)
				}
			}
		}
	}
}

// backward runs a micro-batch of a step, on one stage.
func backward(t *testing.T, s *stage.Computed, step uint64) {
	t.Helper()
	b, m := batch(2, 6, step), stage.Micro{Step: step, Weight: 1}
	if err := s.Forward(m, stage.OnHost(stagetest.Int32Bytes(b.IDs)), stagetest.Int32Bytes(b.Targets), stage.Boundary{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Backward(m, stage.Whole, stage.Boundary{}, stage.Boundary{}); err != nil {
		t.Fatal(err)
	}
}

// TestEveryPartOfAStepLooksAtItsGradients, where nobody did before.
func TestEveryPartOfAStepLooksAtItsGradients(t *testing.T) {
	for bad := range 2 {
		s := single(t, nil)
		backward(t, s, 0)
		elements := parts(s, false)
		s.Gradients().Write([]float32{float32(math.Inf(1))}, elements[bad].From)
		for i, r := range elements {
			err := s.Step(stage.Hyper{LearningRate: 1e-2, GradScale: 1, Elements: r}, nil)
			if _, found := errors.AsType[*stage.NonFiniteError](err); found != (i == bad) {
				t.Errorf("part %d is not finite: the step of part %d says %v", bad, i, err)
			}
		}
	}
}

// TestPartsOfTensorsAreNotUpdated.
func TestPartsOfTensorsAreNotUpdated(t *testing.T) {
	s := single(t, nil)
	backward(t, s, 0)
	before := read(s.Parameters())
	err := s.Step(stage.Hyper{LearningRate: 1e-2, GradScale: 1, Elements: flat.Range{To: 5}}, nil)
	if err == nil || !strings.Contains(err.Error(), "elements 0 to 5 have a part of "+s.Tensors()[0].Name) {
		t.Errorf("a part of a tensor: %v", err)
	}
	if !slices.Equal(read(s.Parameters()), before) {
		t.Error("it changed the parameters")
	}
}
