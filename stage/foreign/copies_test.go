package foreign_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// TestSeveralVersionsOfWeightsHaveCopiesOfTheirOwn steps after each micro-batch, with two others in flight that read the weights which they began with, and
// evaluates in between. It has the bits that it has where parameters lie in the arena.
func TestSeveralVersionsOfWeightsHaveCopiesOfTheirOwn(t *testing.T) {
	for _, predicts := range []bool{false, true} {
		lying, copied := delayed(t, "", predicts), delayed(t, "cpu", predicts)
		if !slices.Equal(lying, copied) {
			t.Errorf("predicting %v: parameters are others with copies", predicts)
		}
	}
}

// delayed trains a stage of modules on a device with gradients of weights that are two steps old, or that are predicted, and returns its scores and parameters.
func delayed(t *testing.T, on string, predicts bool) (found []float32) {
	t.Helper()
	const count = 10
	behind := 2
	if predicts {
		behind = 0
	}
	of, python := images(), newInterpreterOn(t, on, nil)
	d, built, modules := python.open(t, foreign.Program{Path: "testdata/mlp.py", Function: "build", Args: map[string]any{"width": 32}, Loss: "loss"}, of.input)
	of.config.Modules = modules
	m, err := of.config.Build()
	if err != nil {
		t.Fatal(err)
	}
	config := stage.Config{
		Device: d, Model: m, Range: stage.Range{To: len(m.Layers)}, Count: 1, Samples: samples, Sequence: 1, Slots: behind + 1, Versions: behind + 1, Seed: seed,
		Optimizer: stage.Optimizer{Name: "sgd", Momentum: 0.9},
	}
	if predicts {
		config.Versions, config.Predicts = 1, true
	}
	s, err := stage.New(config)
	if err == nil {
		err = s.Load(python.Lookup(built))
	}
	if err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	micro := func(i int) stage.Micro {
		one := stage.Micro{Step: uint64(i), Index: i, Weight: 1} //nolint:gosec // not negative
		if !predicts {
			one.Version = max(0, i-behind)
		}
		return one
	}
	data := func(i int) (input, labels []byte) {
		b := of.data[i%len(of.data)]
		return stagetest.Batch{Pixels: b.X}.Input(m.Layers[0], layer.Size{B: samples, T: 1}, 0), stagetest.Int32Bytes(b.Y[:samples])
	}
	forward := func(i int) {
		t.Helper()
		input, labels := data(i)
		check(s.Forward(micro(i), stage.OnHost(input), labels, stage.Boundary{}))
	}
	s.ZeroGradients()
	for i := range behind + 1 {
		forward(i)
	}
	for i := range count {
		check(s.Backward(micro(i), stage.Whole, stage.Boundary{}, stage.Boundary{}))
		h := stage.Hyper{Step: uint64(i), LearningRate: 0.05, GradScale: 1} //nolint:gosec // not negative
		if !predicts {
			h.Version = (i + 1) % count
			for v := max(0, i+1-behind); v <= i; v++ {
				h.Stash = append(h.Stash, v)
			}
		}
		check(s.Step(h, nil))
		if predicts {
			h.Step++
			check(s.Predict(h, s.Gradients(), flat.Range{To: s.Parameters().Len()}))
		}
		s.ZeroGradients()
		input, labels := data(i)
		score, err := s.Evaluate(nil, input, labels, nil)
		check(err)
		found = append(found, float32(score.Loss))
		if next := i + behind + 1; next < count {
			forward(next)
		}
	}
	values := make([]float32, s.Parameters().Len())
	s.Parameters().Read(values, 0)
	check(s.Close())
	return append(found, values...)
}

// TestModulesWantAGPUThatIsThere: an interpreter whose PyTorch has no CUDA is named, with what to do.
func TestModulesWantAGPUThatIsThere(t *testing.T) {
	python := stagetest.Python(t)
	p := start(t, foreign.Config{Interpreter: python, Device: "cuda"})
	_, err := p.Build(foreign.Program{Path: "testdata/refused.py", Function: "without_cuda"}, seed)
	found, ok := errors.AsType[*foreign.ProgramError](err)
	if !ok || !strings.Contains(found.Message, python+" is built without CUDA") {
		t.Errorf("found %v, expected that the interpreter has no CUDA", err)
	}
}

// TestModulesOfOtherFrameworksComputeOnCoresAlone.
func TestModulesOfOtherFrameworksComputeOnCoresAlone(t *testing.T) {
	standIns(t)
	for _, framework := range []string{"jax", "tensorflow"} {
		p := start(t, foreign.Config{Interpreter: stagetest.Python(t), Device: "cuda"})
		_, err := p.Build(foreign.Program{Path: "testdata/" + framework + "_models.py", Function: "build", Inputs: []foreign.ProbeInput{images().input}}, seed)
		found, ok := errors.AsType[*foreign.ProgramError](err)
		if !ok || !strings.Contains(found.Message, "modules of "+framework+" compute on cores alone") {
			t.Errorf("%s: found %v, expected that it computes on no GPU", framework, err)
		}
	}
}
