package foreign_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// TestACutModuleTrainsAsAWholeOne cuts modules with a forward of their own in front of modules that are named, and trains them by stages. Skips live
// across several stages, masks are made once and used on all of them, sizes are those of the samples that come.
func TestACutModuleTrainsAsAWholeOne(t *testing.T) {
	var all []twice
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
		of := images()
		if c.function == "transformer" {
			of = texts()
		}
		all = append(all, twice{
			name: fmt.Sprintf("%s cut before %v in %d stages, recompute %s", c.function, c.cut, c.stages, c.recompute), of: of, exact: c.exact,
			program:  foreign.Program{Path: "testdata/cut.py", Function: c.function, Loss: "loss", Cut: c.cut, Inputs: []foreign.ProbeInput{of.input}},
			pipeline: stagetest.PipelineConfig{Stages: c.stages, Recompute: c.recompute},
		})
	}
	trainTwice(t, plainTorch, all)
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
