package model_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// dropped are tiny transformers with every kind of dropout that their family has.
var dropped = map[string]struct {
	family string
	config map[string]any
}{
	"gpt2": {"gpt2", map[string]any{
		"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 6, "vocab_size": 11, "resid_pdrop": 0.2, "embd_pdrop": 0.1, "attn_pdrop": 0.3,
	}},
	"llama": {"llama", map[string]any{
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "intermediate_size": 20,
		"max_position_embeddings": 6, "vocab_size": 11, "attention_dropout": 0.3, "tie_word_embeddings": true,
	}},
	"bert": {"bert", map[string]any{
		"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 12, "max_position_embeddings": 6,
		"vocab_size": 11, "num_labels": 3, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.4,
	}},
	"bert-masked": {"bert", map[string]any{
		"architectures": "BertForMaskedLM", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 12,
		"max_position_embeddings": 6, "vocab_size": 11,
	}},
}

// someBatch is four samples, the second padded.
func someBatch(m *model.Model) stagetest.Batch {
	const samples = 4
	rng := rand.New(rand.NewPCG(3, 4))
	var b stagetest.Batch
	for i := range samples * m.Sequence() {
		position := i % m.Sequence()
		mask := int32(1)
		if i/m.Sequence() == 1 && position > 3 {
			mask = 0
		}
		b.IDs, b.Mask = append(b.IDs, rng.Int32N(int32(m.Vocabulary()))), append(b.Mask, mask)
		b.Types = append(b.Types, int32(position/3)%2*mask)
	}
	targets := len(b.IDs)
	if m.Task == model.Classification {
		targets = samples
	}
	for range targets {
		b.Targets = append(b.Targets, rng.Int32N(int32(m.Loss.Classes)))
	}
	return b
}

// result is what one step computes, and the loss of the next.
type result struct {
	losses    [2]float64
	norm      float64
	gradients map[string][]float32
}

func twoSteps(t *testing.T, m *model.Model, stages, micros int, recompute stage.Recompute) result {
	t.Helper()
	p := stagetest.NewPipeline(t, stagetest.PipelineConfig{
		Device: ref.New(), Model: m, Stages: stages, Samples: 4 / micros, Micros: micros, Seed: 5, Recompute: recompute,
	})
	var r result
	for step := range 2 {
		loss, norm, err := p.Run(someBatch(m))
		if err != nil {
			t.Fatal(err)
		}
		if r.losses[step] = loss; step == 0 {
			r.norm, r.gradients = norm, p.Gradients()
			if err := p.Update(0, norm, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	return r
}

// difference names the first tensor whose gradient differs by more than tolerance times its largest element.
func (r result) difference(o result, tolerance float64) string {
	for name, want := range o.gradients {
		largest := 0.0
		for _, v := range want {
			largest = max(largest, math.Abs(float64(v)))
		}
		for i, v := range r.gradients[name] {
			if math.Abs(float64(v-want[i])) > tolerance*max(largest, 1e-3) {
				return fmt.Sprintf("gradient %d of %s is %v, expected %v", i, name, v, want[i])
			}
		}
	}
	return ""
}

func TestEverySplitComputesTheSameWithDropout(t *testing.T) {
	for name, c := range dropped {
		t.Run(name, func(t *testing.T) {
			m, err := model.Build(c.family, c.config)
			if err != nil {
				t.Fatal(err)
			}
			whole := twoSteps(t, m, 1, 2, stage.RecomputeNone)
			if whole.losses[0] == whole.losses[1] {
				t.Error("two steps drop out the same: with a learning rate of 0 their losses agree")
			}
			for stages := 1; stages <= 3; stages++ {
				for _, recompute := range []stage.Recompute{stage.RecomputeNone, stage.RecomputeBlock, stage.RecomputeFull} {
					r := twoSteps(t, m, stages, 2, recompute)
					if r.losses != whole.losses || r.norm != whole.norm {
						t.Errorf("K=%d, recompute %s: losses %v, norm %v, expected %v, %v", stages, recompute, r.losses, r.norm, whole.losses, whole.norm)
					}
					if d := r.difference(whole, 0); d != "" {
						t.Errorf("K=%d, recompute %s: %s", stages, recompute, d)
					}
				}
			}
			// Another cut into micro-batches adds in another order, but drops the same.
			if d := twoSteps(t, m, 2, 4, stage.RecomputeNone).difference(whole, 1e-5); d != "" {
				t.Errorf("four micro-batches: %s", d)
			}
		})
	}
}
