package foreign_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// gptLayers and gptWidth are of the GPT that is trained; 6 layers of 384 have 10.8 million parameters, 9 layers of 528 have 30.5.
var (
	gptLayers = flag.Int("gpt-layers", 4, "layers of the GPT that has the bits of a plain program")
	gptWidth  = flag.Int("gpt-width", 48, "its width, a multiple of 6")
	gptSteps  = flag.Int("gpt-steps", 10, "the steps that it is trained for")
)

// TestAGPTHasTheBitsOfPlainPyTorch, with dropout, on one, two and four stages.
func TestAGPTHasTheBitsOfPlainPyTorch(t *testing.T) {
	const vocabulary, length, rate, micros, samples = 256, 32, 0.1, 2, 2
	program := foreign.Program{Path: "testdata/gpt.py", Function: "build", Loss: "loss", Args: map[string]any{
		"layers": *gptLayers, "width": *gptWidth, "heads": 6, "positions": length, "vocabulary": vocabulary, "dropout": 0.1,
	}}
	data := textsOf(length, vocabulary, *gptSteps, micros*samples)
	want := plain(t, plainTorch, plainRequest{program.Path, program.Function, program.Args, seed, "Rounded", map[string]any{"lr": rate}, micros, samples, data, true, nil, "", nil})[0]
	pythons := map[string]*interpreter{"": newInterpreter(t, nil), "cpu": newInterpreterOn(t, "cpu", nil)}
	for _, c := range []struct {
		stages int
		on     string
	}{{1, ""}, {2, ""}, {4, ""}, {2, "cpu"}} {
		t.Run(fmt.Sprintf("%d stages on %q", c.stages, c.on), func(t *testing.T) {
			python := pythons[c.on]
			d, built, modules := python.open(t, program, foreign.ProbeInput{Shape: []int{samples, length}, Type: "i32", Limit: vocabulary})
			m, err := (&model.ModulesConfig{Task: model.Language, Sequence: length, Vocabulary: vocabulary, UserLoss: true, Modules: modules}).Build()
			if err != nil {
				t.Fatal(err)
			}
			p := stagetest.NewPipeline(t, stagetest.PipelineConfig{
				Device: d, Model: m, Stages: c.stages, Samples: samples, Micros: micros, Seed: seed, Optimizer: stage.Optimizer{Name: "sgd"},
			})
			if worst := python.trainOn(t, p, built, data, want.Losses, rate); worst > 1e-6 {
				t.Errorf("a loss is %.2g of it away from that of the plain program", worst)
			}
			elements := 0
			for name, found := range p.Parameters() {
				elements += len(found)
				sum := sha256.Sum256(device.FloatBytes(found))
				if hex.EncodeToString(sum[:]) != want.Digests[name] {
					t.Errorf("%s has other bits than in the plain program", name)
				}
			}
			t.Logf("%d parameters, losses from %.4f to %.4f", elements, want.Losses[0], want.Losses[len(data)-1])
		})
	}
}
