package pipeline

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// tokens is a Source of random token ids below 11.
type tokens struct{ pipeline int }

func (s tokens) Fill(step uint64, micro int, input, labels []byte) error {
	for i, b := range [][]byte{input, labels} {
		rng := rand.New(rand.NewPCG(step*1000+uint64(micro), uint64(s.pipeline*2+i)))
		for j := 0; j+4 <= len(b); j += 4 {
			binary.NativeEndian.PutUint32(b[j:], rng.Uint32N(11))
		}
	}
	return nil
}

// trainModel trains a small GPT-2 with tied embeddings on K devices and returns losses, gradient norms and evaluations.
func trainModel(t *testing.T, stages, pipelines int, name string) (numbers []float64) {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": 3, "n_head": 2, "n_embd": 12, "n_positions": 6, "vocab_size": 11, "tie_word_embeddings": true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ranges, err := stage.Split(m.Costs(layer.Size{B: 1, T: 6}), stages)
	if err != nil {
		t.Fatal(err)
	}
	method, err := elastic.NewMethod("elastic", elastic.Config{Pipelines: pipelines})
	if err != nil {
		t.Fatal(err)
	}
	const micros = 4
	var mu sync.Mutex
	reports := map[[2]uint64]StepReport{}
	var evals []Evaluation
	c := Config{
		Plan: plan(t, name, stages, micros), MicroBatches: micros, Pipelines: pipelines, Method: method, ClipNorm: 0.5,
		LearningRate: func(uint64) float32 { return 0.01 }, FinalRound: 6,
		Evaluation: &EvaluationConfig{MicroBatches: 3, Due: func(round uint64) bool { return round%2 == 0 }},
		Events: Events{
			OnStep: func(s StepReport) {
				mu.Lock()
				defer mu.Unlock()
				reports[[2]uint64{uint64(s.Pipeline), s.Step}] = s
			},
			OnEvaluated: func(e Evaluation) { evals = append(evals, e) },
		},
	}
	for k, r := range ranges {
		dev := ref.New()
		c.Stages = append(c.Stages, StageConfig{
			Index: k,
			Build: func(int) (stage.Stage, error) {
				return stage.New(stage.Config{Device: dev, Model: m, Range: r, Index: k, Count: stages, Samples: 1, Slots: micros, Seed: 5})
			},
			Source: func(p int) Source { return tokens{p} }, EvaluationSource: tokens{99},
		})
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for p := range uint64(pipelines) {
		for step := range uint64(6) {
			s := reports[[2]uint64{p, step}]
			numbers = append(numbers, s.Loss, s.GradientNorm)
		}
	}
	for _, e := range evals {
		numbers = append(numbers, e.Score.MeanLoss(), float64(e.Round))
	}
	return numbers
}

func TestAModelTrainsToTheSameBitsOnEverySplit(t *testing.T) {
	for _, pipelines := range []int{1, 2} {
		want := trainModel(t, 1, pipelines, "gpipe")
		if n := len(want); n != 2*6*pipelines+2*4 {
			t.Fatalf("%d numbers", n)
		}
		for stages := 2; stages <= 4; stages++ {
			for _, name := range []string{"gpipe", "1f1b", "afp"} {
				t.Run(fmt.Sprintf("N%d_K%d_%s", pipelines, stages, name), func(t *testing.T) {
					if got := trainModel(t, stages, pipelines, name); !slices.Equal(got, want) {
						t.Errorf("losses, norms and evaluations\n%v, want\n%v", got, want)
					}
				})
			}
		}
	}
}
