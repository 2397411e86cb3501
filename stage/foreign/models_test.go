package foreign_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// texts are batches of sequences of ids, each of which follows from the one before; the targets are those behind.
func texts(length, vocabulary int) []plainBatch {
	return textsOf(length, vocabulary, steps, micros*samples)
}

func textsOf(length, vocabulary, steps, batch int) (all []plainBatch) {
	r := rand.New(rand.NewPCG(1, 2))
	for range steps {
		var b plainBatch
		for range batch {
			id := r.IntN(vocabulary)
			for range length {
				b.IDs = append(b.IDs, int32(id))
				id = (3*id + 1 + r.IntN(2)) % vocabulary
				b.Y = append(b.Y, int32(id))
			}
		}
		all = append(all, b)
	}
	return all
}

// TestManyKindsOfModulesTrainAsInPlainPyTorch trains models with what modules of PyTorch do beside computing with their parameters: hold them in lists
// of their own (LSTM), share them, freeze them, compute them (weight norm), run again in the backward (checkpoint), and pass several tensors on.
func TestManyKindsOfModulesTrainAsInPlainPyTorch(t *testing.T) {
	const inputs, classes, vocabulary, length, rate = 12, 5, 11, 6, 0.1
	pixels := foreign.ProbeInput{Shape: []int{samples, inputs}, Type: "f32"}
	for _, c := range []struct {
		function string
		stages   int
		exact    bool // where gradients are added in the same order: those of parameters that are tied across stages, or with the last module, are added at the step
	}{
		{"recurrent", 1, true}, {"recurrent", 3, true}, {"tied", 1, true}, {"tied", 2, false}, {"repeated", 1, true}, {"repeated", 2, false}, {"several", 1, true}, {"several", 4, true}, {"mixed", 1, true}, {"mixed", 4, true},
	} {
		t.Run(fmt.Sprintf("%s in %d stages", c.function, c.stages), func(t *testing.T) {
			program := foreign.Program{Path: "testdata/models.py", Function: c.function, Args: map[string]any{}, Loss: "loss"}
			input, config, data := pixels, model.ModulesConfig{Task: model.Images, Sequence: 1, UserLoss: true}, batches(inputs, classes)
			if c.function == "tied" {
				input = foreign.ProbeInput{Shape: []int{samples, length}, Type: "i32", Limit: vocabulary}
				config, data = model.ModulesConfig{Task: model.Language, Sequence: length, Vocabulary: vocabulary, UserLoss: true}, texts(length, vocabulary)
			}
			var want plainAnswer
			stagetest.PyTorch(t, "testdata/plain.py", plainRequest{program.Path, program.Function, program.Args, seed, "Rounded", map[string]any{"lr": rate}, micros, samples, data, false, nil}, &want)
			d, process, built, modules := open(t, program, input)
			config.Modules = modules
			m, err := config.Build()
			if err != nil {
				t.Fatal(err)
			}
			p := stagetest.NewPipeline(t, stagetest.PipelineConfig{
				Device: d, Model: m, Stages: c.stages, Samples: samples, Micros: micros, Seed: seed, Optimizer: stage.Optimizer{Name: "sgd"},
			})
			worst := trainOn(t, p, process, built, data, want.Losses, rate)
			away := 0.0
			for name, found := range p.Parameters() {
				for i, x := range found {
					away = max(away, math.Abs(float64(x)-want.Values[name][i]))
				}
			}
			t.Logf("losses from %.4f to %.4f, largest difference %.2g; parameters differ by %.2g at most", want.Losses[0], want.Losses[steps-1], worst, away)
			if worst > 1e-6 || away > 1e-5 || c.exact && away > 0 {
				t.Error("it did not train as the plain program")
			}
		})
	}
}
