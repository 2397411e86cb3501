package foreign_test

import (
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// behind is a model of a family, of which the head is also a module in Python.
type behind struct {
	family   string
	config   map[string]any
	function string
	args     map[string]any
	names    map[string]string // of the module's parameters, and what those of the family's head are called
}

const hidden, positions = 16, 12

// familyHeads are heads of families, as modules.
var familyHeads = []behind{
	{
		"gpt2",
		map[string]any{"vocab_size": vocabulary, "n_positions": positions, "n_embd": hidden, "n_layer": 3, "n_head": 2, "tie_word_embeddings": false},
		"projection",
		map[string]any{"width": hidden, "vocabulary": vocabulary},
		map[string]string{"0.weight": "lm_head.weight"},
	},
	{
		"llama",
		map[string]any{
			"vocab_size": vocabulary, "max_position_embeddings": positions, "hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 24,
			"tie_word_embeddings": false,
		},
		"projection",
		map[string]any{"width": hidden, "vocabulary": vocabulary},
		map[string]string{"0.weight": "lm_head.weight"},
	},
	{
		"bert",
		map[string]any{
			"vocab_size": vocabulary, "max_position_embeddings": positions, "hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "num_labels": classes,
			"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
		},
		"classifier",
		map[string]any{"width": hidden, "classes": classes},
		map[string]string{
			"0.dense.weight": "bert.pooler.dense.weight", "0.dense.bias": "bert.pooler.dense.bias", "0.classifier.weight": "classifier.weight", "0.classifier.bias": "classifier.bias",
		},
	},
}

// configBehind is that of the model whose head is modules.
func (b *behind) configBehind(whole *model.Model) model.ModulesConfig {
	return model.ModulesConfig{ModelType: model.Python, Front: whole.Config(), Task: whole.Task, Sequence: positions, Vocabulary: vocabulary}
}

// build has a head built, and makes the model of it and what is in front.
func (b *behind) build(t *testing.T, p *foreign.Process, whole *model.Model) (*model.Model, error) {
	t.Helper()
	c := b.configBehind(whole)
	given, err := c.Inputs()
	if err != nil {
		t.Fatal(err)
	}
	var inputs []foreign.ProbeInput
	for _, x := range given {
		inputs = append(inputs, foreign.ProbeInput{Shape: append([]int{samples}, x.Shape...), Type: x.Type.String(), Limit: x.Limit, Gradient: x.Differentiable})
	}
	built, err := p.Build(foreign.Program{Path: "testdata/front.py", Function: b.function, Args: b.args}, seed)
	if err != nil {
		t.Fatal(err)
	}
	probed, err := p.Probe(foreign.Probe{Inputs: inputs, Seed: seed})
	if err != nil {
		return nil, err
	}
	if c.Modules, err = foreign.Modules(built, inputs, probed, samples); err != nil {
		return nil, err
	}
	return c.Build()
}

// TestModulesBehindAFamilyTrainAsItsOwnHead: a model whose head is a module in Python trains as the one whose head is ours, and to the same bits on any number of stages.
func TestModulesBehindAFamilyTrainAsItsOwnHead(t *testing.T) {
	i := newInterpreter(t, nil)
	for _, b := range familyHeads {
		t.Run(b.family, func(t *testing.T) {
			whole, err := model.Build(b.family, b.config)
			if err != nil {
				t.Fatal(err)
			}
			c := stagetest.PipelineConfig{Device: i.on, Model: whole, Stages: 1, Samples: samples, Micros: micros, Seed: seed, Optimizer: stage.Optimizer{Name: "sgd"}}
			ours := stagetest.NewPipeline(t, c)
			begins := ours.Parameters()
			losses := trainFront(t, ours, whole)
			m, err := b.build(t, i.Process, whole)
			if err != nil {
				t.Fatal(err)
			}
			d := foreign.Over(i.Process, i.on)
			var bits map[string][]float32
			for stages := 1; stages <= 3; stages++ {
				c.Device, c.Model, c.Stages = d, m, stages
				p := stagetest.NewPipeline(t, c)
				for _, s := range p.Stages {
					if err := s.Load(b.lookup(whole, m, begins)); err != nil {
						t.Fatal(err)
					}
				}
				for at, loss := range trainFront(t, p, m) {
					if math.Abs(loss-losses[at]) > 1e-5*losses[at] {
						t.Errorf("%d stages, step %d: a loss of %v, %v with the head of the family", stages, at, loss, losses[at])
					}
				}
				found := p.Parameters()
				b.compare(t, found, ours.Parameters())
				if bits != nil && !maps.EqualFunc(bits, found, equalBits) {
					t.Errorf("%d stages: other bits than on one", stages)
				}
				bits = found
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func equalBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

// lookup has the values of the family's own model.
func (b *behind) lookup(whole, m *model.Model, values map[string][]float32) stage.Lookup {
	shapes := map[string][]int{}
	for _, p := range append(whole.Params(), m.Params()...) {
		shapes[p.Name] = p.Shape
	}
	return func(name string) ([]int, []float32, bool, error) {
		from := name
		if other := b.names[name]; other != "" {
			from = other
		}
		return shapes[name], values[from], values[from] != nil, nil
	}
}

// compare holds parameters against those of the family's own model.
func (b *behind) compare(t *testing.T, found, want map[string][]float32) {
	t.Helper()
	if len(found) != len(want) {
		t.Errorf("%d parameters, expected %d", len(found), len(want))
	}
	for name, values := range found {
		other := want[name]
		if renamed := b.names[name]; renamed != "" {
			other = want[renamed]
		}
		if len(other) != len(values) {
			t.Fatalf("%s has %d values, expected %d", name, len(values), len(other))
		}
		for i, x := range values {
			if math.Abs(float64(x-other[i])) > 1e-5 {
				t.Fatalf("%s[%d] is %v, expected %v", name, i, x, other[i])
			}
		}
	}
}

// trainFront trains for some steps, and returns their losses, which fall.
func trainFront(t *testing.T, p *stagetest.Pipeline, m *model.Model) (losses []float64) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		var b stagetest.Batch
		for range micros * samples {
			first := r.Int32N(vocabulary)
			for i := range int32(positions) {
				b.IDs, b.Types, b.Mask = append(b.IDs, (first+i)%vocabulary), append(b.Types, 0), append(b.Mask, 1)
				if m.Task == model.Language {
					b.Targets = append(b.Targets, (first+i+1)%vocabulary)
				}
			}
			if m.Task == model.Classification {
				b.Targets = append(b.Targets, first%classes)
			}
		}
		loss, norm, err := p.Run(b)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss)
		if err := p.Update(0.1, norm, 0); err != nil {
			t.Fatal(err)
		}
	}
	if losses[7] >= losses[0] {
		t.Errorf("losses %v do not fall", losses)
	}
	return losses
}

// TestRefusedFronts: modules through which no gradient flows to the layers in front, and configs that do not go together.
func TestRefusedFronts(t *testing.T) {
	b := familyHeads[0]
	whole, err := model.Build(b.family, b.config)
	if err != nil {
		t.Fatal(err)
	}
	i := newInterpreter(t, nil)
	b.function = "ends"
	if _, err := b.build(t, i.Process, whole); err == nil || !strings.Contains(err.Error(), "no gradient flows") {
		t.Errorf("modules that end the gradient: %v", err)
	}
	c := b.configBehind(whole)
	c.Task = model.Classification
	if _, err := c.Inputs(); err == nil || !strings.Contains(err.Error(), "language, whose samples the gpt2 in front of the modules takes") {
		t.Errorf("another task: %v", err)
	}
	c = b.configBehind(whole)
	c.Sequence = positions + 1
	if _, err := c.Inputs(); err == nil || !strings.Contains(err.Error(), "samples of 13 positions; the gpt2 in front of the modules takes at most 12") {
		t.Errorf("longer samples: %v", err)
	}
	c.Front = map[string]any{"model_type": "mlp"}
	if _, err := c.Inputs(); err == nil || !strings.Contains(err.Error(), "bert, gpt2, llama, mistral, qwen2") {
		t.Errorf("a family that has no front: %v", err)
	}
}
