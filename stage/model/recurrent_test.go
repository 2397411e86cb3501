package model_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/generate"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// recurrentFamilies are small configs in which everything that is random is on.
var recurrentFamilies = map[string]struct {
	family string
	config map[string]any
}{
	"gnmt": {"gnmt", map[string]any{
		"vocab_size": 13, "hidden_size": 6, "num_layers": 3, "dropout": 0.3, "max_length": 5,
	}},
	"gnmt with two embeddings": {"gnmt", map[string]any{
		"vocab_size": 13, "hidden_size": 6, "num_layers": 2, "dropout": 0.3, "max_length": 5, "share_embedding": false,
	}},
	"awd-lstm": {"awd-lstm", map[string]any{"ntoken": 13, "ninp": 6, "nhid": 8, "nlayers": 2, "bptt": 5, "dropoute": 0.3}},
}

func buildRecurrent(t *testing.T, name string) *model.Model {
	t.Helper()
	m, err := model.Build(recurrentFamilies[name].family, recurrentFamilies[name].config)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// translationBatch is one of 4 samples of 5 positions, sources and targets of different lengths; it serves a language
// model as well.
func translationBatch(seed uint64) stagetest.Batch {
	rng := rand.New(rand.NewPCG(seed, 0))
	var b stagetest.Batch
	for sample := range 4 {
		for position := range 5 {
			b.IDs, b.Decoder = append(b.IDs, rng.Int32N(13)), append(b.Decoder, rng.Int32N(13))
			mask, target := int32(1), rng.Int32N(13)
			if position > sample+1 {
				mask = 0
			}
			if position > 4-sample {
				target = -1
			}
			b.Mask, b.Targets = append(b.Mask, mask), append(b.Targets, target)
		}
	}
	return b
}

// trained runs three clipped steps and returns the weights, the losses and the norms.
func trained(t *testing.T, c stagetest.PipelineConfig) (weights map[string][]float32, numbers []float64) {
	t.Helper()
	c.Samples, c.Seed = 4/c.Micros, 5
	p := stagetest.NewPipeline(t, c)
	for step := range uint64(3) {
		loss, squared, err := p.Run(translationBatch(step))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Update(0.1, squared, 0.5); err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, loss, squared)
	}
	return p.Parameters(), numbers
}

// TestRecurrentModelsHaveTheSameBitsOnEverySplit, with dropout: whole and halved backwards, activations kept or computed
// again, embeddings tied across stages, masks and contexts crossing boundaries.
func TestRecurrentModelsHaveTheSameBitsOnEverySplit(t *testing.T) {
	for name := range recurrentFamilies {
		t.Run(name, func(t *testing.T) {
			m := buildRecurrent(t, name)
			for _, micros := range []int{1, 2} {
				base := stagetest.PipelineConfig{
					Device: ref.New(), Model: m, Stages: 1, Micros: micros, Optimizer: stage.Optimizer{Name: "asgd", T0: 1},
				}
				want, wantNumbers := trained(t, base)
				for stages := 1; stages <= len(m.Layers); stages++ {
					for _, recompute := range []stage.Recompute{stage.RecomputeNone, stage.RecomputeBlock, stage.RecomputeFull} {
						c := base
						c.Stages, c.Halves, c.Recompute = stages, stages%2 == 0, recompute
						found, numbers := trained(t, c)
						sameBits(t, fmt.Sprintf("M=%d K=%d recompute %s", micros, stages, recompute), found, want)
						if !slices.Equal(numbers, wantNumbers) {
							t.Errorf("M=%d K=%d recompute %s: losses and norms %v, want %v", micros, stages, recompute, numbers, wantNumbers)
						}
					}
				}
			}
		})
	}
}

func sameBits(t *testing.T, what string, found, want map[string][]float32) {
	t.Helper()
	if !maps.EqualFunc(found, want, func(a, b []float32) bool {
		return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
	}) {
		t.Errorf("%s: other weights", what)
	}
}

// TestDropoutDoesNotDependOnTheCut: the losses of one batch are those of its samples, however it is cut.
func TestDropoutDoesNotDependOnTheCut(t *testing.T) {
	for name := range recurrentFamilies {
		t.Run(name, func(t *testing.T) {
			m := buildRecurrent(t, name)
			var first float64
			for _, micros := range []int{1, 2, 4} {
				p := stagetest.NewPipeline(t, stagetest.PipelineConfig{
					Device: ref.New(), Model: m, Stages: 2, Micros: micros, Samples: 4 / micros, Seed: 5,
				})
				loss, _, err := p.Run(translationBatch(1))
				if err != nil {
					t.Fatal(err)
				}
				if micros == 1 {
					first = loss
				}
				if math.Abs(loss-first) > 1e-6 { // rounding of sums of about 2.6
					t.Errorf("M=%d: loss %v, want %v as in one micro-batch", micros, loss, first)
				}
			}
		})
	}
}

func TestTrainingRecurrentModelsAllocatesNothing(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for name := range recurrentFamilies {
			m := buildRecurrent(t, name)
			s, err := stage.New(stage.Config{
				Device: dev, Model: m, Samples: 2, Slots: 1, Optimizer: stage.Optimizer{Name: "asgd"},
			})
			if err != nil {
				t.Fatal(err)
			}
			b := translationBatch(1)
			input := b.Input(m.Layers[0], layer.Size{B: 2, T: 5}, 0)
			labels := stagetest.Int32Bytes(b.Targets[:10])
			micro := stage.Micro{Weight: 1}
			got := envtest.Allocations(10, func() {
				s.ZeroGradients()
				err = errors.Join(err, s.Forward(micro, stage.OnHost(input), labels, stage.Boundary{}), s.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{}))
				_, norm := s.SquaredNorm(0)
				err = errors.Join(err, norm, s.Step(stage.Hyper{Step: micro.Step, LearningRate: 0.1, GradScale: 1}, nil))
				micro.Step++
			})
			if got != 0 {
				t.Errorf("%s: %v allocations a step, want none", name, got)
			}
			if err = errors.Join(err, s.Close()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestRecurrentConfigsNameWhatIsWrong(t *testing.T) {
	for change, want := range map[string]string{
		`gnmt: {"num_layers": 1}`:      "num_layers is 1; allowed is an integer from 2 to 1024",
		`gnmt: {"hidden_size": 0}`:     "hidden_size is 0; allowed is an integer from 1 to",
		`gnmt: {"dropout": 1}`:         "dropout is 1; allowed is a number of at least 0 and below 1",
		`gnmt: {"smoothing": -0.1}`:    "smoothing is -0.1; allowed",
		`gnmt: {"hidden": 4}`:          `unknown field "hidden"`,
		`awd-lstm: {"nlayers": 0}`:     "nlayers is 0; allowed is an integer from 1 to",
		`awd-lstm: {"wdrop": 1.5}`:     "wdrop is 1.5; allowed is a number of at least 0 and below 1",
		`awd-lstm: {"alpha": -1}`:      "alpha is -1; allowed is a number from 0 to 1000",
		`awd-lstm: {"dropoutx": 0}`:    `unknown field "dropoutx"`,
		`awd-lstm: {"tie_weights": 1}`: "tie_weights is 1; allowed is true or false",
	} {
		family, text, _ := strings.Cut(change, ": ")
		var config map[string]any
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		_, err := model.Build(family, config)
		var field *model.FieldError
		if !errors.As(err, &field) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", change, err, want)
		}
	}
}

// TestRecurrentConfigsComeBackFromTheirExport: the config.json that is written makes the same model.
func TestRecurrentConfigsComeBackFromTheirExport(t *testing.T) {
	for name := range recurrentFamilies {
		m := buildRecurrent(t, name)
		text, err := json.Marshal(m.Config())
		if err != nil {
			t.Fatal(err)
		}
		again, err := model.FromHuggingFace(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !maps.EqualFunc(again.Config(), m.Config(), func(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
			t.Errorf("%s: config %v, want %v", name, again.Config(), m.Config())
		}
		tensors := map[string][]int{}
		for _, p := range m.Params() {
			if p.TiedTo == "" {
				tensors[m.TensorNames(p)[0]] = p.Shape
			}
		}
		if err := again.CheckTensors(tensors); err != nil {
			t.Errorf("%s: tensors: %v", name, err)
		}
	}
}

// TestGenerateWithAWDLSTM trains on counting modulo 7 and continues 3, 4.
func TestGenerateWithAWDLSTM(t *testing.T) {
	m, err := model.Build("awd-lstm", map[string]any{
		"ntoken": 7, "ninp": 12, "nhid": 16, "nlayers": 2, "bptt": 8, "dropout": 0, "dropouth": 0, "dropouti": 0, "dropoute": 0,
		"wdrop": 0.1, "alpha": 0, "beta": 0,
	})
	if err != nil {
		t.Fatal(err)
	}
	p := stagetest.NewPipeline(t, stagetest.PipelineConfig{Device: ref.New(), Model: m, Stages: 1, Samples: 7, Micros: 1})
	var b stagetest.Batch
	for sample := range 7 {
		for position := range 8 {
			b.IDs, b.Targets = append(b.IDs, int32((sample+position)%7)), append(b.Targets, int32((sample+position+1)%7))
		}
	}
	for range 120 {
		_, squared, err := p.Run(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Update(0.02, squared, 1); err != nil {
			t.Fatal(err)
		}
	}
	values, shapes := p.Parameters(), map[string][]int{}
	for _, x := range p.Stages[0].Tensors() {
		shapes[x.Name] = x.Shape
	}
	var found []int32
	_, err = generate.Run(t.Context(), generate.Config{
		Device: ref.New(), Model: m, Prompt: []int32{3, 4}, Tokens: 12,
		Weights: func(name string) ([]int, []float32, bool, error) {
			x, ok := values[name]
			return shapes[name], x, ok, nil
		},
	}, func(token int32) error { found = append(found, token); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if want := []int32{5, 6, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2}; !slices.Equal(found, want) {
		t.Errorf("continued 3 4 by %v, want %v", found, want)
	}
}
