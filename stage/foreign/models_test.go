package foreign_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// kind is what a model is given, and what comes out of it.
type kind struct {
	input  foreign.ProbeInput
	config model.ModulesConfig
	data   []plainBatch
}

const (
	inputs     = 12 // numbers of an image, or ids of a text
	classes    = 5
	vocabulary = 11
)

// images are of classes.
func images() kind {
	return kind{foreign.ProbeInput{Shape: []int{samples, inputs}, Type: "f32"}, model.ModulesConfig{Task: model.Images, Sequence: 1, UserLoss: true}, batches()}
}

func texts() kind {
	return kind{
		foreign.ProbeInput{Shape: []int{samples, inputs}, Type: "i32", Limit: vocabulary},
		model.ModulesConfig{Task: model.Language, Sequence: inputs, Vocabulary: vocabulary, UserLoss: true},
		textsOf(inputs, vocabulary, *steps, micros*samples),
	}
}

func batches() (all []plainBatch) {
	r := rand.New(rand.NewPCG(1, 2))
	for range *steps {
		var b plainBatch
		for range micros * samples {
			y := r.IntN(classes)
			b.Y = append(b.Y, int32(y))
			for i := range inputs {
				b.X = append(b.X, float32(r.NormFloat64()+float64((y+i)%3)))
			}
		}
		all = append(all, b)
	}
	return all
}

// textsOf are batches of sequences of ids, each of which follows from the one before; the targets are those behind.
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
	var all []twice
	for _, c := range []struct {
		function string
		stages   int
		exact    bool // where gradients are added in the same order: those of parameters that are tied across stages, or with the last module, are added at the step
	}{
		{"recurrent", 1, true}, {"recurrent", 3, true}, {"tied", 1, true}, {"tied", 2, false}, {"repeated", 1, true}, {"repeated", 2, false}, {"several", 1, true}, {"several", 4, true}, {"mixed", 1, true}, {"mixed", 4, true},
	} {
		of := images()
		if c.function == "tied" {
			of = texts()
		}
		all = append(all, twice{
			name: fmt.Sprintf("%s in %d stages", c.function, c.stages), of: of, exact: c.exact,
			program: foreign.Program{Path: "testdata/models.py", Function: c.function, Loss: "loss"}, pipeline: stagetest.PipelineConfig{Stages: c.stages},
		})
	}
	trainTwice(t, plainTorch, all)
}
