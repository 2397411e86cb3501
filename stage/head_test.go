package stage_test

import (
	"math"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// A vocabulary so large that the head runs two samples of 150 positions in parts, of 256 rows and of 44.
const largeVocabulary, headPositions = 66_000, 150

// headStage is a whole model of that vocabulary, for micro-batches of so many samples.
func headStage(t *testing.T, samples int, change func(*stage.Config)) *stage.Computed {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": 1, "n_embd": 4, "n_head": 1, "n_positions": headPositions, "vocab_size": largeVocabulary, "tie_word_embeddings": false,
	})
	if err != nil {
		t.Fatal(err)
	}
	c := stage.Config{Device: ref.New(), Model: m, Samples: samples, Slots: 1, WeightSlots: 1, Seed: 3}
	if change != nil {
		change(&c)
	}
	s, err := stage.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// headPass trains on two samples, in micro-batches of so many, and returns the loss and the gradients.
func headPass(t *testing.T, s *stage.Computed, samples int, parts ...stage.Part) (float64, []float32) {
	t.Helper()
	ids, targets := make([]int32, 2*headPositions), make([]int32, 2*headPositions)
	for i := range ids {
		ids[i], targets[i] = int32(i*7919%largeVocabulary), int32(i*104_729%largeVocabulary)
	}
	s.ZeroGradients()
	for i := range 2 / samples {
		from, to := i*samples*headPositions, (i+1)*samples*headPositions
		micro := stage.Micro{Index: i, Weight: float32(samples) / 2}
		if err := s.Forward(micro, stage.OnHost(stagetest.Int32Bytes(ids[from:to])), stagetest.Int32Bytes(targets[from:to]), stage.Boundary{}); err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if err := s.Backward(micro, part, stage.Boundary{}, stage.Boundary{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	loss, err := s.Loss()
	if err != nil {
		t.Fatal(err)
	}
	gradients := make([]float32, s.Gradients().Len())
	s.Gradients().Read(gradients, 0)
	return loss, gradients
}

func TestAHeadInPartsComputesWhatItDoesInOne(t *testing.T) {
	whole, want := headPass(t, headStage(t, 1, nil), 1, stage.Whole)
	loss, found := headPass(t, headStage(t, 2, nil), 2, stage.Whole)
	if math.Abs(loss-whole) > 1e-6*whole {
		t.Errorf("loss %v in parts, %v in one", loss, whole)
	}
	largest := 0.0
	for _, g := range want {
		largest = max(largest, math.Abs(float64(g)))
	}
	for i, g := range found {
		if math.Abs(float64(g-want[i])) > 1e-5*largest {
			t.Fatalf("gradient %d is %v in parts, %v in one; the largest is %v", i, g, want[i], largest)
		}
	}
	for name, s := range map[string]*stage.Computed{
		"whole layers again": headStage(t, 2, func(c *stage.Config) { c.Recompute = stage.RecomputeBlock }),
		"all again":          headStage(t, 2, func(c *stage.Config) { c.Recompute = stage.RecomputeFull }),
	} {
		if again, other := headPass(t, s, 2, stage.Whole); again != loss || !slices.Equal(other, found) {
			t.Errorf("%s: the loss is %v and not %v, or gradients differ", name, again, loss)
		}
	}
	if halved, other := headPass(t, headStage(t, 2, nil), 2, stage.Input, stage.Weight); halved != loss || !slices.Equal(other, found) {
		t.Errorf("in halves: the loss is %v and not %v, or gradients differ", halved, loss)
	}
}

func TestLogitsOfALargeVocabularyNeverLieInMemoryAsAWhole(t *testing.T) {
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": 1, "n_embd": 64, "n_head": 1, "n_positions": 1024, "vocab_size": largeVocabulary, "tie_word_embeddings": false,
	})
	if err != nil {
		t.Fatal(err)
	}
	const samples = 4
	bytes, err := stage.Config{Device: ref.New(), Model: m, Samples: samples, Slots: 2, WeightSlots: 1}.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	logits := int64(samples * 1024 * largeVocabulary * 4)
	if found := bytes.Activations + bytes.Boundaries; found > logits/4 {
		t.Errorf("passes and boundaries take %d bytes; the logits of a micro-batch are %d", found, logits)
	}
}
