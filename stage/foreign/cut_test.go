package foreign_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// TestACutModuleTrainsAsAWholeOne cuts modules with a forward of their own in front of modules that are named, and trains them by stages. Skips live
// across several stages, masks are made once and used on all of them, sizes are those of the samples that come.
func TestACutModuleTrainsAsAWholeOne(t *testing.T) {
	const inputs, classes, vocabulary, rate = 12, 5, 11, 0.1
	for _, c := range []struct {
		function  string
		cut       []string
		stages    int
		recompute stage.Recompute
		exact     bool // where gradients are added in the same order
	}{
		{"unet", []string{"down2", "mid", "up1"}, 1, "", true},
		{"unet", []string{"mid", "down2", "up1"}, 4, "", true},
		{"unet", []string{"mid", "up2"}, 3, stage.RecomputeFull, true},
		{"unet", []string{}, 1, "", true},
		{"transformer", []string{"layers.1", "layers.2"}, 3, "", false},
		{"branches", []string{"right"}, 2, "", false},
		{"sequential", []string{"1.2", "3"}, 3, "", true},
	} {
		t.Run(fmt.Sprintf("%s cut before %v in %d stages, recompute %s", c.function, c.cut, c.stages, c.recompute), func(t *testing.T) {
			input := foreign.ProbeInput{Shape: []int{samples, inputs}, Type: "f32"}
			config, data := model.ModulesConfig{Task: model.Images, Sequence: 1, UserLoss: true}, batches(inputs, classes)
			if c.function == "transformer" {
				input = foreign.ProbeInput{Shape: []int{samples, inputs}, Type: "i32", Limit: vocabulary}
				config, data = model.ModulesConfig{Task: model.Language, Sequence: inputs, Vocabulary: vocabulary, UserLoss: true}, texts(inputs, vocabulary)
			}
			data = data[:12]
			program := foreign.Program{Path: "testdata/cut.py", Function: c.function, Args: map[string]any{}, Loss: "loss", Cut: c.cut, Inputs: []foreign.ProbeInput{input}}
			var want plainAnswer
			stagetest.PyTorch(t, "testdata/plain.py", plainRequest{program.Path, program.Function, program.Args, seed, "Rounded", map[string]any{"lr": rate}, micros, samples, data, false, c.cut}, &want)
			d, process, built, modules := open(t, program, input)
			config.Modules = modules
			m, err := config.Build()
			if err != nil {
				t.Fatal(err)
			}
			p := stagetest.NewPipeline(t, stagetest.PipelineConfig{
				Device: d, Model: m, Stages: c.stages, Samples: samples, Micros: micros, Seed: seed, Recompute: c.recompute, Optimizer: stage.Optimizer{Name: "sgd"},
			})
			worst := trainOn(t, p, process, built, data, want.Losses, rate)
			away, found := 0.0, p.Parameters()
			for name, values := range want.Values {
				if len(found[name]) != len(values) {
					t.Fatalf("%s has %d values, expected %d", name, len(found[name]), len(values))
				}
				for i, x := range found[name] {
					away = max(away, math.Abs(float64(x)-values[i]))
				}
			}
			t.Logf("losses from %.4f to %.4f, largest difference %.2g; parameters differ by %.2g at most", want.Losses[0], want.Losses[len(data)-1], worst, away)
			if worst > 1e-6 || away > 1e-5 || c.exact && away > 0 {
				t.Error("it did not train as the whole module")
			}
		})
	}
}

// TestRefusedCuts: what cannot be cut is refused with the user's line, and what can is cut.
func TestRefusedCuts(t *testing.T) {
	p := start(t, foreign.Config{Interpreter: stagetest.Python(t)})
	const file = "testdata/cut_refused.py"
	input := []foreign.ProbeInput{{Shape: []int{samples, 2}, Type: "f32"}}
	for _, c := range []struct{ function, cut, text string }{
		{"plain", "secnd", "model.cut names 'secnd', and the Plain has no such module; nearest: second"},
		{"plain", "blocks", "model.cut names blocks, of ModuleList, which the forward of the Plain does not call as it was tried; expected a module that it calls once; nearest: blocks.0"},
		{"plain", "second alias", "model.cut names second and alias, which are one module"},
		{"plain", "blocks.1 blocks.1.0", "model.cut names blocks.1 and blocks.1.0, and nothing runs between them"},
		{"plain", "first second", ""},
		{"twice", "second", "model.cut names second, of Linear, which the forward of the Twice calls 2 times"},
		{"by_values", "second", "the forward of the ByValues depends on the values of a tensor here"},
		{"by_samples", "second", "the forward of the BySamples depends on the number of samples here: 2 and 3"},
		{"by_numpy", "second", "the forward of the ByNumpy cannot be followed here: "},
		{"no_grad", "second", "the forward of the NoGrad computes without gradients here"},
		{"whole_batch", "second", "mean, which lives across the cut in front of second, is torch.float32 of shapes (2,) and (2,) for 2 and 3 samples"},
		{"double", "second", "wide, which lives across the cut in front of second, is torch.float64"},
		{"narrow", "second", ""},
		{"drawn", "second", "bernoulli, which lives across the cut in front of second, is torch.float32 of shapes (1, 2) and (1, 2)"},
		{"hooked", "second", "build returned a Hooked with hooks"},
		{"listed", "0", "model.cut says where one module is cut, and build returned a list of modules"},
		{"raises", "second", "not today"},
		{"in_place", "second", "expected that it depends on its inputs, its parameters and random numbers of PyTorch alone, and that its inputs share no memory"},
		{"cast", "second", "the parts of the Cast that model.cut cuts give something else than the whole"},
		{"sizes", "second", ""},
	} {
		t.Run(c.function+" "+c.cut, func(t *testing.T) {
			_, err := p.Build(foreign.Program{Path: file, Function: c.function, Cut: strings.Fields(c.cut), Inputs: input}, 1)
			if err == nil {
				_, err = p.Probe(foreign.Probe{Inputs: input})
			}
			if c.text == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			found, ok := errors.AsType[*foreign.ProgramError](err)
			if !ok || !strings.Contains(found.Message, c.text) {
				t.Fatalf("found %v, expected %s", err, c.text)
			}
			if line := lineOf(t, file, c.function); line != 0 && found.Line != line {
				t.Errorf("found line %d, expected %d: %v", found.Line, line, err)
			}
		})
	}
}
