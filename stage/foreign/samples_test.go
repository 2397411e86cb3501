package foreign_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// numbered are batches of the numbers of samples, in the order of epochs of so many.
func numbered(all, each, batch, count int) (out []plainBatch) {
	r := rand.New(rand.NewPCG(1, 2))
	var order []int
	for epoch := 0; len(order) < batch*count; epoch++ {
		for _, i := range r.Perm(each) {
			order = append(order, epoch*all+i)
		}
	}
	for i := range count {
		var b plainBatch
		for _, n := range order[i*batch : (i+1)*batch] {
			b.IDs = append(b.IDs, int32(n))
		}
		b.Y = b.IDs
		out = append(out, b)
	}
	return out
}

// TestSamplesOfTheProgramTrainAsInAPlainLoop trains models on what the user's program makes itself: padded sequences with their lengths, images that are turned at random, noise that is
// both input and target, two inputs and targets by name. Only numbers of samples cross, and both ends draw the same.
func TestSamplesOfTheProgramTrainAsInAPlainLoop(t *testing.T) {
	var all []twice
	for _, c := range []struct {
		model, loss, collate string
		cut                  []string
		stages               []int
		held                 int
	}{
		{"packed", "loss", "packed_collate", nil, []int{1, 2, 4}, 10},
		{"residual", "loss", "", nil, []int{1, 4}, 0},
		{"denoiser", "denoiser_loss", "", []string{"mid", "up", "out"}, []int{1, 2, 4}, 0},
		{"two", "two_loss", "", nil, []int{1, 4}, 0},
	} {
		of := kind{input: foreign.ProbeInput{Shape: []int{samples}, Type: "i32"}, data: numbered(96+c.held, 96, micros*samples, *steps)}
		of.config = model.ModulesConfig{Task: model.Samples, Sequence: 1, UserLoss: true, Samples: model.SampleCounts{Train: 96, HeldOut: c.held}}
		program := foreign.Program{
			Path: "testdata/own_data.py", Function: c.model, Loss: c.loss, Cut: c.cut, Samples: &foreign.Samples{Function: c.model + "_samples", Collate: c.collate},
		}
		if c.cut != nil {
			program.Inputs = []foreign.ProbeInput{of.input}
		}
		for _, stages := range c.stages {
			all = append(all, twice{
				name: fmt.Sprintf("%s in %d stages", c.model, stages), of: of, exact: true, program: program, pipeline: stagetest.PipelineConfig{Stages: stages},
			})
		}
	}
	trainTwice(t, plainTorch, all)
}

// TestRefusedSamples: what is wrong with samples is said with the line of the function that returns them, or of what failed.
func TestRefusedSamples(t *testing.T) {
	const file, count = "testdata/refused_samples.py", 4
	p := start(t, foreign.Config{Interpreter: stagetest.Python(t)})
	for _, c := range []struct{ function, collate, text string }{
		{"good", "", ""},
		{"split", "", ""},
		{"absent", "", "has no function absent; expected one, which returns samples"},
		{"good", "absent", "has no function absent; expected one, which makes inputs and targets of a list of samples"},
		{"no_length", "", "no_length returned list_iterator, which has no __len__ or no __getitem__; expected an object with both"},
		{"empty", "", "empty has 0 samples; expected at least 1"},
		{"three", "", "three has samples that make a"},
		{"number", "", "number has samples that make a Tensor; expected a pair, of inputs and targets"},
		{"text", "", "text has samples whose inputs are of str; expected a tensor, or a tuple of tensors"},
		{"raises", "", "ValueError: sample 0: sample 0 is broken"},
		{"ragged", "", "RuntimeError: default_collate, since data.collate names no function: stack expects each tensor to be equal size"},
		{"good", "takes_nothing", "TypeError: takes_nothing: takes_nothing() takes 0 positional arguments but 1 was given"},
		{"by_the_clock", "", "by_the_clock has samples whose inputs differ when they are read again"},
		{"good", "as_one", "good has samples whose inputs are of shape (2,) for 4 of them; expected 4 as their first dimension"},
		{"wide", "", "module 0 (Linear), which was given torch.float32 of shape (4, 5): mat1 and mat2 shapes cannot be multiplied (4x5 and 2x3)"},
	} {
		t.Run(c.function+" "+c.collate, func(t *testing.T) {
			input := []foreign.ProbeInput{{Shape: []int{count}, Type: "i32"}}
			_, err := p.Build(foreign.Program{Path: file, Function: "build", Loss: "loss", Samples: &foreign.Samples{Function: c.function, Collate: c.collate}}, 1)
			if err == nil {
				_, err = p.Probe(foreign.Probe{Inputs: input, Targets: input})
			}
			if c.text == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			problem, ok := errors.AsType[*foreign.ProgramError](err)
			if !ok || !strings.Contains(problem.Error(), c.text) {
				t.Fatalf("%v; expected that it says %q", err, c.text)
			}
			at := c.function
			if c.collate != "" && c.collate != "absent" {
				at = c.collate
			}
			if line := lineOf(t, file, at); line != 0 && (problem.Line != line || filepath.Base(problem.File) != filepath.Base(file)) {
				t.Errorf("at %s:%d, expected line %d", problem.File, problem.Line, line)
			}
		})
	}
}

// sampled is a stage of all modules of testdata/own_data.py that learn from samples of theirs, and what evaluates it on the samples with some numbers, of which the first ones count.
func sampled(t *testing.T, program foreign.Program) (p *stagetest.Pipeline, evaluate func(numbers []int32, counting int) stage.Score) {
	t.Helper()
	python := newInterpreter(t, nil)
	d, built, modules := python.open(t, program, foreign.ProbeInput{Shape: []int{samples}, Type: "i32"})
	m, err := (&model.ModulesConfig{Task: model.Samples, Sequence: 1, UserLoss: true, Samples: model.SampleCounts(built.Samples), Modules: modules}).Build()
	if err != nil {
		t.Fatal(err)
	}
	p = stagetest.NewPipeline(t, stagetest.PipelineConfig{Device: d, Model: m, Stages: 1, Samples: samples, Micros: 1, Seed: seed, Optimizer: stage.Optimizer{Name: "sgd"}})
	if err := p.Stages[0].Load(python.Lookup(built)); err != nil {
		t.Fatal(err)
	}
	return p, func(numbers []int32, counting int) stage.Score {
		t.Helper()
		b := stagetest.Batch{IDs: numbers}
		for i, n := range numbers {
			if i >= counting {
				n = -1
			}
			b.Targets = append(b.Targets, n)
		}
		score, err := p.Stages[0].Evaluate(nil, b.Input(m.Layers[0], layer.Size{B: samples, T: 1}, 0), stagetest.Int32Bytes(b.Targets), nil)
		if err != nil {
			t.Fatal(err)
		}
		return score
	}
}

// TestEvaluationsOfSamplesAreTheUsersLoss: the mean of the samples that count, times how many these are.
func TestEvaluationsOfSamplesAreTheUsersLoss(t *testing.T) {
	_, evaluate := sampled(t, foreign.Program{
		Path: "testdata/own_data.py", Function: "two", Loss: "two_loss", Samples: &foreign.Samples{Function: "two_samples", Args: map[string]any{"scale": 3}},
	})
	whole := evaluate([]int32{1, 2, 3, 4, 5, 6, 7, 8}, 8)
	sum := evaluate([]int32{1, 2, 3, 3, 3, 3, 3, 3}, 3)
	sum.Add(evaluate([]int32{4, 5, 6, 7, 8, 8, 8, 8}, 5))
	if whole.Targets != 8 || sum.Targets != 8 || whole.Loss <= 0 || math.Abs(whole.Loss-sum.Loss) > 1e-5*whole.Loss {
		t.Errorf("%d targets of a loss of %v, and in parts %d of %v", whole.Targets, whole.Loss, sum.Targets, sum.Loss)
	}
}

// TestModulesThatWriteToTheirInputsLeaveSamplesAsTheyAre, also where a collate function has kept them; and samples are no part of a graph in training.
func TestModulesThatWriteToTheirInputsLeaveSamplesAsTheyAre(t *testing.T) {
	p, evaluate := sampled(t, foreign.Program{
		Path: "testdata/own_data.py", Function: "kept", Loss: "loss", Samples: &foreign.Samples{Function: "kept_samples", Collate: "kept_collate"},
	})
	numbers := []int32{10, 20, 30, 40, 50, 60, 70, 80}
	first := evaluate(numbers, samples)
	if second := evaluate(numbers, samples); second.Loss != first.Loss {
		t.Errorf("a loss of %v, and then of %v", first.Loss, second.Loss)
	}
	if loss, _, err := p.Run(stagetest.Batch{IDs: numbers, Targets: numbers}); err != nil || math.Abs(samples*loss-first.Loss) > 1e-5*first.Loss {
		t.Errorf("a loss of %v in training, expected %v: %v", samples*loss, first.Loss, err)
	}
}
